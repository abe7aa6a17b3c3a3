package server_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/config"
)

// authority signs certificates; crypto/tls in the client is the oracle of what is accepted.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = a.issue("authority", time.Now().Add(time.Hour))
	return a
}

// issue makes a certificate for 127.0.0.1; the first one is the authority's own.
func (a *authority) issue(name string, ends time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: ends.Add(-24 * time.Hour), NotAfter: ends,
		Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// write puts a fresh certificate and its key into dir, and returns it.
func (a *authority) write(dir string) *x509.Certificate {
	a.t.Helper()
	cert, key := a.issue("server", time.Now().Add(time.Hour))
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert.Raw}, "tls.key": {Type: "PRIVATE KEY", Bytes: secret},
		"ca.crt": {Type: "CERTIFICATE", Bytes: a.cert.Raw},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert
}

func (a *authority) trust() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// withTLS is a configuration that takes its files from dir.
func withTLS(t *testing.T, dir string) config.Config {
	c := configFor(t, t.TempDir())
	c.HTTP.TLSCert, c.HTTP.TLSKey = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	return c
}

func webClient(t *testing.T, c *tls.Config, keepAlive bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: !keepAlive, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// ask sends one request and returns the answer, its body read.
func ask(web *http.Client, url string) (*http.Response, string, error) {
	resp, err := web.Get(url)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

func TestTLS(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	a.write(dir)
	r := start(t, withTLS(t, dir), nil)
	resp, _, err := ask(webClient(t, &tls.Config{RootCAs: a.trust()}, true), r.tlsURL("/.penstock/livez"))
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.ProtoMajor != 1 {
		t.Errorf("%d over %s", resp.StatusCode, resp.Proto)
	}
}

func (r *running) tlsURL(path string) string { return "https://" + r.s.Addr().String() + path }

// TestTLSReloadUnderLoad: certificates are exchanged again and again, in the way of Kubernetes, while
// clients come and go. Not one request fails, and new connections see the newest certificate.
func TestTLSReloadUnderLoad(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	swap := func(i int) *x509.Certificate {
		generation := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(generation, 0o700); err != nil {
			t.Fatal(err)
		}
		cert := a.write(generation)
		if err := os.Symlink(generation, filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
		return cert
	}
	swap(0)
	r := start(t, withTLS(t, filepath.Join(dir, "data")), nil)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	failed := make(chan error, 8)
	for i := range cap(failed) {
		cache := tls.NewLRUClientSessionCache(4)
		web := webClient(t, &tls.Config{RootCAs: a.trust(), ClientSessionCache: cache}, i%2 == 0)
		clients.Go(func() {
			for ctx.Err() == nil {
				resp, _, err := ask(web, r.tlsURL("/.penstock/livez"))
				if err == nil && resp.StatusCode != 200 {
					err = errors.New(resp.Status)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	const reloads = 30
	var newest *x509.Certificate
	for i := range reloads {
		newest = swap(i + 1)
		r.s.Reload(t.Context())
	}
	stop()
	clients.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	resp, _, err := ask(webClient(t, &tls.Config{RootCAs: a.trust()}, false), r.tlsURL("/.penstock/livez"))
	if err != nil || !resp.TLS.PeerCertificates[0].Equal(newest) {
		t.Errorf("not the newest certificate: %v", err)
	}
	r.await(fmt.Sprintf("penstock_tls_reloads_total %d", reloads))
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(reloads), "tls.key"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.s.Reload(t.Context())
	text := r.await("penstock_tls_reload_errors_total 1")
	ends := fmt.Sprintf("penstock_tls_certificate_expiry_seconds %v\n", float64(newest.NotAfter.Unix()))
	if !strings.Contains(text, ends) {
		t.Error("the expiry is not that of the certificate in force")
	}
	if _, _, err := ask(webClient(t, &tls.Config{RootCAs: a.trust()}, false), r.tlsURL("/.penstock/livez")); err != nil {
		t.Errorf("after a bad reload: %v", err)
	}
}

// TestTLSClientCertificates: they are a second lock and no key: who has one still has to sign.
func TestTLSClientCertificates(t *testing.T) {
	a, other, dir := newAuthority(t), newAuthority(t), t.TempDir()
	a.write(dir)
	for _, mode := range []string{"request", "require"} {
		c := withTLS(t, dir)
		c.HTTP.ClientCA, c.HTTP.ClientAuth = filepath.Join(dir, "ca.crt"), mode
		c.HTTP.AccessLog = filepath.Join(t.TempDir(), "access.log")
		r := start(t, c, nil)
		config := func(by *authority, ends time.Time) *tls.Config {
			cert, key := by.issue("alice", ends)
			own := &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
			return &tls.Config{
				RootCAs:              a.trust(),
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil },
			}
		}
		soon := time.Now().Add(time.Hour)
		for name, want := range map[string]struct {
			config *tls.Config
			ok     bool
		}{
			"none":     {&tls.Config{RootCAs: a.trust()}, mode == "request"},
			"good":     {config(a, soon), true},
			"stranger": {config(other, soon), false},
			"expired":  {config(a, time.Now().Add(-time.Minute)), false},
		} {
			resp, _, err := ask(webClient(t, want.config, false), r.tlsURL("/bucket/"+name))
			if (err == nil) != want.ok {
				t.Errorf("%s, %s: %v", mode, name, err)
			}
			if err == nil && resp.StatusCode != 403 {
				t.Errorf("%s, %s: an unsigned request got %d", mode, name, resp.StatusCode)
			}
		}
		failures := map[string]int{"request": 2, "require": 3}[mode]
		r.await(fmt.Sprintf("penstock_tls_handshake_failures_total %d", failures))
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		lines := map[string]map[string]any{}
		for _, line := range readLines(t, c.HTTP.AccessLog) {
			lines[fmt.Sprint(line["key"])] = line
		}
		if l := lines["good"]; l["client_subject"] != "CN=alice" || l["tls"] != "TLS 1.3" || l["principal"] != nil {
			t.Errorf("%s: %v", mode, l)
		}
		if l := lines["none"]; mode == "request" && (l == nil || l["client_subject"] != nil) {
			t.Errorf("%s: %v", mode, l)
		}
	}
}

// readLines reads an access log; encoding/json is the oracle of its form.
func readLines(t *testing.T, path string) (lines []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for l := range bytes.Lines(text) {
		var line map[string]any
		if err := json.Unmarshal(l, &line); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		lines = append(lines, line)
	}
	return lines
}

// TestTLSPortRefusesInS3Form: plain HTTP, and a malformed request inside of TLS.
func TestTLSPortRefusesInS3Form(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	a.write(dir)
	r := start(t, withTLS(t, dir), nil)
	address := r.s.Addr().String()
	check := func(got string) {
		t.Helper()
		if !strings.HasPrefix(got, "HTTP/1.1 400 Bad Request\r\nX-Amz-Request-Id: ") ||
			!strings.Contains(got, "<Code>BadRequest</Code>") {
			t.Errorf("%q", got)
		}
	}
	check(talk(t, address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	check(talk(t, address, "PUT /bucket/key HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"+
		strings.Repeat("x", 100_000)))
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: a.trust()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Error(err)
	}
	check(string(got))
	if got := talk(t, address, "\x80\x00nonsense that is neither\r\n\r\n"); strings.Contains(got, "HTTP") {
		t.Errorf("%q", got)
	}
	// A client that never begins its handshake is let go of, and holds up nobody meanwhile.
	silent, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	web := webClient(t, &tls.Config{RootCAs: a.trust()}, false)
	if _, _, err := ask(web, r.tlsURL("/.penstock/livez")); err != nil {
		t.Error(err)
	}
}
