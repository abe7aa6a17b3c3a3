package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// virtualDomain is the base of virtual-host style names. No DNS knows it: clients reach it by the
// driver's proxy.
const virtualDomain = "s3.penstock.test"

// authority is the CA of the run and the one certificate that it signed.
type authority struct {
	caFile, certFile, keyFile string
	pool                      *x509.CertPool
}

func newAuthority(dir string) (*authority, error) {
	a := &authority{
		caFile: filepath.Join(dir, "ca.pem"), certFile: filepath.Join(dir, "cert.pem"),
		keyFile: filepath.Join(dir, "key.pem"), pool: x509.NewCertPool(),
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate: make key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate: make key: %w", err)
	}
	from, until := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Penstock test CA"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"localhost", virtualDomain, "*." + virtualDomain},
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, fmt.Errorf("certificate: sign CA: %w", err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, fmt.Errorf("certificate: sign: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("certificate: encode key: %w", err)
	}
	caPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	a.pool.AppendCertsFromPEM(caPEM)
	return a, errors.Join(
		os.WriteFile(a.caFile, caPEM, 0o600),
		os.WriteFile(a.certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leafDER}), 0o600),
		os.WriteFile(a.keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600),
	)
}

// node is a server in a process of its own.
type node struct {
	scheme, host         string // host is address:port
	accessKey, secretKey string
	ca                   *authority
	http                 *http.Client
	proxy                string // address of the proxy that clients need, empty: none

	binary, dir, admin string
	cmd                *exec.Cmd
	exited             chan error
	log                bytes.Buffer
}

const (
	startTimeout = 60 * time.Second // preallocation on a slow disk
	stopTimeout  = 40 * time.Second // the server's own limit of draining, and some
)

// newNode chooses the addresses; start makes the process.
func newNode(binary, dir, scheme string, ca *authority) (*node, error) {
	n := &node{scheme: scheme, binary: binary, dir: dir, ca: ca,
		accessKey: "E2E" + rand.Text()[:17], secretKey: rand.Text() + rand.Text()[:14]}
	n.http = &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool}, MaxIdleConnsPerHost: 16},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var err error
	if n.host, err = freeAddress(); err != nil {
		return nil, err
	}
	n.admin, err = freeAddress()
	return n, err
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("node: find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (n *node) endpoint() string { return n.scheme + "://" + n.host }

func (n *node) start(ctx context.Context) error {
	args := []string{"serve", "--data", n.dir, "--listen", n.host, "--admin-listen", n.admin,
		"--domain", virtualDomain, "--storage-reserve", "256MiB"}
	if n.scheme == "https" {
		args = append(args, "--http-tls-cert", n.ca.certFile, "--http-tls-key", n.ca.keyFile)
	}
	n.cmd = exec.Command(n.binary, args...)
	n.cmd.Env = append(os.Environ(), "PENSTOCK_ROOT_ACCESS_KEY="+n.accessKey, "PENSTOCK_ROOT_SECRET_KEY="+n.secretKey)
	n.cmd.Stderr = &n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true} // our ^C is not its
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("node: start: %w", err)
	}
	n.exited = make(chan error, 1)
	go func() { n.exited <- n.cmd.Wait() }()
	return n.awaitReady(ctx)
}

func (n *node) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.endpoint()+"/.penstock/readyz", nil)
		if err != nil {
			return fmt.Errorf("node: ask for readiness: %w", err)
		}
		if resp, err := n.http.Do(req); err == nil {
			_ = resp.Body.Close() // the status is the answer
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-n.exited:
			n.exited <- err
			return fmt.Errorf("node: ended: %w: %s", errors.Join(err, io.ErrUnexpectedEOF), clip(n.log.String()))
		case <-ctx.Done():
			return fmt.Errorf("node: wait until ready: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// kill ends the process as a crash would.
func (n *node) kill() {
	_ = n.cmd.Process.Kill() // it may have ended
	<-n.exited
}

// stop ends it politely and says when it did not end well.
func (n *node) stop() error {
	_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case err := <-n.exited:
		if err != nil {
			return fmt.Errorf("node: ended: %w: %s", err, clip(n.log.String()))
		}
		return nil
	case <-time.After(stopTimeout):
		n.kill()
		return fmt.Errorf("node: did not end within %v", stopTimeout)
	}
}

// environment of clients, with nothing of the caller's that could steer them.
func (n *node) environment(home string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "TMPDIR=" + home,
		"AWS_ENDPOINT_URL=" + n.endpoint(), "AWS_REGION=us-east-1", "AWS_DEFAULT_REGION=us-east-1",
		"AWS_ACCESS_KEY_ID=" + n.accessKey, "AWS_SECRET_ACCESS_KEY=" + n.secretKey, "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE=" + filepath.Join(home, "no-config"), "AWS_PAGER=",
		"PYTHONDONTWRITEBYTECODE=1", // the programs lie in the repository
	}
	if n.scheme == "https" {
		env = append(env, "AWS_CA_BUNDLE="+n.ca.caFile, "SSL_CERT_FILE="+n.ca.caFile, "NODE_EXTRA_CA_CERTS="+n.ca.caFile)
	}
	return env
}

// proxy carries every connection to the node, whatever name was asked for, so that names below
// virtualDomain work without DNS.
type proxy struct {
	listener net.Listener
	server   *http.Server
	target   string

	mu   sync.Mutex
	seen []string // hosts that were asked for
}

func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: listen: %w", err)
	}
	p := &proxy{listener: l, target: target}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.server.Serve(l) }() // ends by close
	return p, nil
}

func (p *proxy) url() string  { return "http://" + p.listener.Addr().String() }
func (p *proxy) close() error { return p.server.Close() }

// hosts that clients asked for.
func (p *proxy) hosts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Host)
	p.mu.Unlock()
	if r.Method == http.MethodConnect {
		p.tunnel(w)
		return
	}
	out := r.Clone(r.Context())
	out.RequestURI = ""
	out.URL.Host = p.target
	out.Header.Del("Proxy-Connection")
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(out) // Host stays as the client sent it
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the client sees a short body
}

func (p *proxy) tunnel(w http.ResponseWriter) {
	to, err := net.Dial("tcp", p.target)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	if _, err := io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	ended := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(to, buffered); ended <- struct{}{} }()
	go func() { _, _ = io.Copy(from, to); ended <- struct{}{} }()
	<-ended
}
