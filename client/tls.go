package client

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
)

// tlsConfig reads the files that an HTTPS endpoint needs, and none for another one: AWS_CA_BUNDLE is often
// set for all tools of a machine. Nil is what net/http does by itself.
func (c Config) tlsConfig(endpoint *url.URL) (*tls.Config, error) {
	if endpoint.Scheme != "https" {
		return nil, nil
	}
	if (c.ClientCert == "") != (c.ClientKey == "") {
		return nil, fmt.Errorf("%w: a client certificate needs a file of the certificate and one of its key", ErrConfig)
	}
	var t tls.Config
	if bundle := firstOf(c.CABundle, os.Getenv("AWS_CA_BUNDLE")); bundle != "" {
		text, err := os.ReadFile(bundle)
		if err != nil {
			return nil, fmt.Errorf("%w: CA bundle: %w", ErrConfig, err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%w: CA bundle: %s holds no certificate", ErrConfig, bundle)
		}
	}
	if c.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("%w: client certificate: %w", ErrConfig, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return &t, nil
}
