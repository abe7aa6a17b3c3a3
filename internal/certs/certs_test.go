package certs_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/certs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issued is a certificate with its key; x509 is the oracle of what clients accept.
type issued struct {
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
	certPEM   []byte
	secretPEM []byte
}

func issue(t *testing.T, parent *issued, ends time.Time, names ...string) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, NotBefore: ends.Add(-24 * time.Hour), NotAfter: ends, DNSNames: names,
		Subject:     pkix.Name{CommonName: strings.Join(names, " ")},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}
	signer, signerKey := template, key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
	} else {
		signer, signerKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signerKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &issued{cert: cert, key: key, certPEM: block("CERTIFICATE", der), secretPEM: block("PRIVATE KEY", secret)}
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func (i *issued) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(i.cert)
	return p
}

func (i *issued) pair() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{i.cert.Raw}, PrivateKey: i.key}
}

func write(t *testing.T, name string, text []byte) string {
	t.Helper()
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func pairIn(t *testing.T, dir string, i *issued) certs.Pair {
	t.Helper()
	return certs.Pair{
		Cert: write(t, filepath.Join(dir, "tls.crt"), i.certPEM), Key: write(t, filepath.Join(dir, "tls.key"), i.secretPEM),
	}
}

func open(t *testing.T, o certs.Options) *certs.Store {
	t.Helper()
	s, err := certs.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// shake makes one connection and returns what each side says of it.
func shake(t *testing.T, server, client *tls.Config) (clientState, serverState tls.ConnectionState, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type result struct {
		state tls.ConnectionState
		err   error
	}
	served := make(chan result, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			served <- result{err: err}
			return
		}
		defer raw.Close()
		conn := tls.Server(raw, server)
		if err = conn.Handshake(); err == nil {
			_, err = conn.Write([]byte("x")) // carries the session tickets
		}
		served <- result{conn.ConnectionState(), err}
	}()
	conn, err := tls.Dial("tcp", l.Addr().String(), client)
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // a refusal of the client's certificate comes here
		clientState = conn.ConnectionState()
		_ = conn.Close()
	}
	r := <-served
	return clientState, r.state, errors.Join(err, r.err)
}

func TestServerNameChoosesTheCertificate(t *testing.T) {
	ca := issue(t, nil, time.Now().Add(time.Hour), "ca")
	var pairs []certs.Pair
	for _, name := range []string{"first.test", "*.s3.test", "other.test"} {
		pairs = append(pairs, pairIn(t, t.TempDir(), issue(t, ca, time.Now().Add(time.Hour), name)))
	}
	s := open(t, certs.Options{Pairs: pairs})
	for name, want := range map[string]string{
		"first.test": "first.test", "bucket.s3.test": "*.s3.test", "other.test": "other.test",
	} {
		state, _, err := shake(t, s.Config(), &tls.Config{RootCAs: ca.pool(), ServerName: name})
		if err != nil || state.PeerCertificates[0].DNSNames[0] != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	state, _, err := shake(t, s.Config(), &tls.Config{InsecureSkipVerify: true, ServerName: "unknown.test"})
	if err != nil || state.PeerCertificates[0].DNSNames[0] != "first.test" {
		t.Errorf("an unknown name: %v", err)
	}
	old := &tls.Config{RootCAs: ca.pool(), ServerName: "first.test", MaxVersion: tls.VersionTLS11}
	if _, _, err := shake(t, s.Config(), old); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
}

// TestReload: each way in which files are replaced is noticed; what is not good changes nothing and is
// counted.
func TestReload(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	ca := issue(t, nil, soon, "ca")
	first, second := issue(t, ca, soon, "a.test"), issue(t, ca, soon.Add(time.Minute), "a.test")
	expired := issue(t, ca, time.Now().Add(-time.Minute), "a.test")
	early := issue(t, ca, time.Now().Add(48*time.Hour), "a.test")
	for name, c := range map[string]struct {
		cert, key []byte
		want      *issued
		err       error
	}{
		"the same":          {first.certPEM, first.secretPEM, first, nil},
		"a new pair":        {second.certPEM, second.secretPEM, second, nil},
		"only the new cert": {second.certPEM, first.secretPEM, first, certs.ErrInvalid},
		"only the new key":  {first.certPEM, second.secretPEM, first, certs.ErrInvalid},
		"half a file":       {second.certPEM[:200], second.secretPEM, first, certs.ErrInvalid},
		"empty":             {nil, nil, first, certs.ErrInvalid},
		"expired":           {expired.certPEM, expired.secretPEM, first, certs.ErrExpired},
		"not yet valid":     {early.certPEM, early.secretPEM, first, certs.ErrExpired},
		"swapped files":     {second.secretPEM, second.certPEM, first, certs.ErrInvalid},
		"endless":           {bytes.Repeat([]byte("x"), 5<<20), second.secretPEM, first, certs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			pair := pairIn(t, t.TempDir(), first)
			s := open(t, certs.Options{Pairs: []certs.Pair{pair}})
			write(t, pair.Cert, c.cert)
			write(t, pair.Key, c.key)
			if err := s.Reload(); !errors.Is(err, c.err) {
				t.Errorf("got %v, want %v", err, c.err)
			}
			if err := certs.Check(certs.Options{Pairs: []certs.Pair{pair}}); !errors.Is(err, c.err) {
				t.Errorf("check: got %v, want %v", err, c.err)
			}
			state, _, err := shake(t, s.Config(), &tls.Config{RootCAs: ca.pool(), ServerName: "a.test"})
			if err != nil || !state.PeerCertificates[0].Equal(c.want.cert) {
				t.Errorf("not the certificate that should be in force: %v", err)
			}
			want := certs.Stats{Expires: c.want.cert.NotAfter}
			if c.err != nil {
				want.Errors = 1
			} else if c.want == second {
				want.Reloads = 1
			}
			if got := s.Stats(); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// TestPollNoticesASwap: a directory behind a symbolic link is exchanged, as Kubernetes does with secrets,
// and nobody says so.
func TestPollNoticesASwap(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	ca := issue(t, nil, soon, "ca")
	first, second := issue(t, ca, soon, "a.test"), issue(t, ca, soon.Add(time.Minute), "a.test")
	dir := t.TempDir()
	for name, i := range map[string]*issued{"one": first, "two": second} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		pairIn(t, filepath.Join(dir, name), i)
	}
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("one", "data")
	link(filepath.Join("data", "tls.crt"), "tls.crt")
	link(filepath.Join("data", "tls.key"), "tls.key")
	pair := certs.Pair{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	var log bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		s, err := certs.Open(certs.Options{
			Pairs: []certs.Pair{pair}, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Now: func() time.Time { return soon.Add(-time.Minute) }, // the bubble's clock began in 2000
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		link("two", "new")
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if got := s.Stats(); got.Reloads != 1 || !got.Expires.Equal(second.cert.NotAfter) {
			t.Errorf("%+v", got)
		}
		if err := os.Remove(filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := s.Stats(); got.Reloads != 1 || got.Errors != 3 {
			t.Errorf("%+v", got)
		}
		if n := strings.Count(log.String(), "certificates stay as they were"); n != 1 {
			t.Errorf("%d lines say so: %s", n, log.String())
		}
	})
}

func TestClientCertificates(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	ca, foreign := issue(t, nil, soon, "ca"), issue(t, nil, soon, "foreign ca")
	pair := pairIn(t, t.TempDir(), issue(t, ca, soon, "a.test"))
	authorities := write(t, filepath.Join(t.TempDir(), "ca.pem"), ca.certPEM)
	good, stranger := issue(t, ca, soon, "alice"), issue(t, foreign, soon, "mallory")
	old := issue(t, ca, time.Now().Add(-time.Minute), "old")
	for _, c := range []struct {
		mode   string
		client *issued
		ok     bool
		named  bool
	}{
		{certs.Off, nil, true, false}, {certs.Off, good, true, false},
		{certs.Request, nil, true, false}, {certs.Request, good, true, true}, {certs.Request, stranger, false, false},
		{certs.Require, nil, false, false}, {certs.Require, good, true, true}, {certs.Require, stranger, false, false},
		{certs.Require, old, false, false}, {certs.Request, old, false, false},
	} {
		s := open(t, certs.Options{Pairs: []certs.Pair{pair}, ClientCA: authorities, ClientAuth: c.mode})
		client := &tls.Config{RootCAs: ca.pool(), ServerName: "a.test"}
		if c.client != nil { // sent even where the server names other authorities
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				own := c.client.pair()
				return &own, nil
			}
		}
		_, state, err := shake(t, s.Config(), client)
		if (err == nil) != c.ok || (len(state.VerifiedChains) > 0) != c.named {
			t.Errorf("%+v: %v, %d chains", c, err, len(state.VerifiedChains))
		}
	}
	empty := write(t, filepath.Join(t.TempDir(), "empty.pem"), []byte("nothing"))
	_, err := certs.Open(certs.Options{Pairs: []certs.Pair{pair}, ClientCA: empty, ClientAuth: certs.Require})
	if !errors.Is(err, certs.ErrInvalid) {
		t.Errorf("no authority: %v", err)
	}
}

// TestTicketsEndWithTheirSet: a session is resumed as long as the set is in force, and not beyond, so that
// an authority that was taken out of the file lets nobody in any more.
func TestTicketsEndWithTheirSet(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	ca, next := issue(t, nil, soon, "ca"), issue(t, nil, soon, "next ca")
	pair := pairIn(t, t.TempDir(), issue(t, ca, soon, "a.test"))
	authorities := write(t, filepath.Join(t.TempDir(), "ca.pem"), ca.certPEM)
	s := open(t, certs.Options{Pairs: []certs.Pair{pair}, ClientCA: authorities, ClientAuth: certs.Require})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		client := &tls.Config{
			RootCAs: ca.pool(), ServerName: "a.test", ClientSessionCache: tls.NewLRUClientSessionCache(4),
			MaxVersion:   version,
			Certificates: []tls.Certificate{issue(t, ca, soon, "alice").pair()},
		}
		for i, want := range []bool{false, true} {
			state, _, err := shake(t, s.Config(), client)
			if err != nil || state.DidResume != want {
				t.Errorf("connection %d of %s: %v, resumed: %v", i, tls.VersionName(version), err, state.DidResume)
			}
		}
		write(t, authorities, next.certPEM)
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := shake(t, s.Config(), client); err == nil {
			t.Errorf("%s: a client of the old authority got in", tls.VersionName(version))
		}
		write(t, authorities, ca.certPEM)
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpenWithAnExpiredCertificate: the node comes up and says so.
func TestOpenWithAnExpiredCertificate(t *testing.T) {
	ca := issue(t, nil, time.Now().Add(time.Hour), "ca")
	pair := pairIn(t, t.TempDir(), issue(t, ca, time.Now().Add(-time.Minute), "a.test"))
	var log bytes.Buffer
	s := open(t, certs.Options{Pairs: []certs.Pair{pair}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if !strings.Contains(log.String(), "certificate is not valid now") {
		t.Errorf("%s", log.String())
	}
	if err := s.Reload(); err != nil || s.Stats().Errors != 0 {
		t.Errorf("reload of the same: %v", err)
	}
	if _, err := certs.Open(certs.Options{Pairs: []certs.Pair{{Cert: pair.Cert, Key: pair.Cert + "x"}}}); err == nil {
		t.Error("opened without a key")
	}
}
