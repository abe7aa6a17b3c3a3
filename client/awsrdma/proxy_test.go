package awsrdma_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// proxy stands between a client and the node. Only object requests are shown to meddle.
type proxy struct {
	*httptest.Server
	forward http.Handler

	mu     sync.Mutex
	tokens []string
	bodies int64 // bytes of the requests that carried a token
	meddle func(w http.ResponseWriter, r *http.Request, forward http.Handler)
}

func (n *node) proxy(t *testing.T) *proxy {
	t.Helper()
	to, err := url.Parse(n.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	p := &proxy{forward: &httputil.ReverseProxy{
		Transport: tr,
		ErrorLog:  log.New(io.Discard, "", 0), // clients give up on purpose
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is signed
		},
	}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.Server.Close()
		tr.CloseIdleConnections()
	})
	return p
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/.penstock/") {
		p.forward.ServeHTTP(w, r)
		return
	}
	p.mu.Lock()
	if token := r.Header.Get("X-Amz-Rdma-Token"); token != "" {
		p.tokens = append(p.tokens, token)
		p.bodies += max(r.ContentLength, 0)
	}
	meddle := p.meddle
	p.mu.Unlock()
	if meddle != nil {
		meddle(w, r, p.forward)
		return
	}
	p.forward.ServeHTTP(w, r)
}

func (p *proxy) set(f func(w http.ResponseWriter, r *http.Request, forward http.Handler)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.meddle = f
}

// seen returns the tokens that passed, and forgets them.
func (p *proxy) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	tokens := p.tokens
	p.tokens = nil
	return tokens
}

func hasToken(r *http.Request) bool { return r.Header.Get("X-Amz-Rdma-Token") != "" }

// rewritten sends the answer on with other headers.
func rewritten(forward http.Handler, w http.ResponseWriter, r *http.Request, change func(http.Header)) {
	rec := httptest.NewRecorder()
	forward.ServeHTTP(rec, r)
	change(rec.Header())
	for name, values := range rec.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}
