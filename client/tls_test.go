package client

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestTLSFiles: whom a client trusts and what it shows are the files that it was given. The oracle is a server
// of net/http that is not the node, with the certificate that it shows as the authority.
func TestTLSFiles(t *testing.T) {
	var shown []byte // the client's certificate
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		shown = nil
		if len(r.TLS.PeerCertificates) > 0 {
			shown = r.TLS.PeerCertificates[0].Raw
		}
	}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	srv.StartTLS()
	defer srv.Close()

	dir := t.TempDir()
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	der, err := x509.MarshalPKCS8PrivateKey(srv.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := file("cert", "CERTIFICATE", srv.Certificate().Raw), file("key", "PRIVATE KEY", der)
	missing := filepath.Join(dir, "missing")

	for _, c := range []struct {
		name, env  string
		cfg        Config
		config, ok bool // ErrConfig; an answer
		shows      bool
	}{
		{name: "authorities of the system"},
		{name: "a bundle", cfg: Config{CABundle: cert}, ok: true},
		{name: "a bundle of the environment", env: cert, ok: true},
		{name: "the configuration goes first", env: missing, cfg: Config{CABundle: cert}, ok: true},
		{name: "a certificate", cfg: Config{CABundle: cert, ClientCert: cert, ClientKey: key}, ok: true, shows: true},
		{name: "no such bundle", env: missing, config: true},
		{name: "a bundle without certificates", env: key, config: true},
		{name: "half a pair", cfg: Config{CABundle: cert, ClientCert: cert}, config: true},
		{name: "the other half", cfg: Config{CABundle: cert, ClientKey: key}, config: true},
		{name: "no pair", cfg: Config{CABundle: cert, ClientCert: cert, ClientKey: cert}, config: true},
		{name: "plain HTTP needs no files", env: missing, cfg: Config{Endpoint: "http://127.0.0.1:1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("AWS_CA_BUNDLE", c.env)
			c.cfg.Endpoint = firstOf(c.cfg.Endpoint, srv.URL)
			c.cfg.Credentials, c.cfg.MaxAttempts, shown = Credentials{AccessKey: "AK", SecretKey: "S"}, 1, nil
			cl, err := New(c.cfg)
			if c.config || err != nil {
				if !errors.Is(err, ErrConfig) || !c.config {
					t.Fatalf("error %v, want ErrConfig: %v", err, c.config)
				}
				return
			}
			defer cl.Close()
			if err := cl.HeadBucket(t.Context(), "b"); (err == nil) != c.ok {
				t.Errorf("error %v, want an answer: %v", err, c.ok)
			}
			if want := srv.Certificate().Raw; c.shows != bytes.Equal(shown, want) || !c.shows && shown != nil {
				t.Errorf("the client showed %d bytes of a certificate, want it: %v", len(shown), c.shows)
			}
		})
	}
}
