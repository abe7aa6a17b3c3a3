package server_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/server"
)

// TestAnonymousBucketIsLocalAndLoud: a node with it says so whatever its log level is, does not start where others
// would reach it, and opens nothing beside it.
func TestAnonymousBucketIsLocalAndLoud(t *testing.T) {
	for _, change := range []func(*config.Config){
		func(c *config.Config) { c.HTTP.Listen = ":0" },
		func(c *config.Config) { c.HTTP.AdminListen = "0.0.0.0:0" },
		func(c *config.Config) { c.RDMA.TCPListen, c.RDMA.TCPAdvertise = "0.0.0.0:0", "127.0.0.1:1" },
		func(c *config.Config) { c.HTTP.TLSCert, c.HTTP.TLSKey = "c", "k" },
	} {
		c := configFor(t, t.TempDir())
		c.Test.AnonymousBucket = "open"
		change(&c)
		if _, err := server.New(context.Background(), c, nil); !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%+v: %v", c.HTTP, err)
		}
	}

	var log bytes.Buffer
	c := configFor(t, t.TempDir())
	c.Test.AnonymousBucket = "open"
	r := start(t, c, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})))
	plain := func(method, path, body string) (int, string) {
		req, err := http.NewRequest(method, "http://"+r.s.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		status, text := r.fetch(req)
		return status, string(text)
	}
	if status, text := r.do("PUT", "/closed", nil); status != 200 {
		t.Fatalf("make a bucket: %d %s", status, text)
	}
	for _, step := range []struct {
		method, path, body string
		status             int
	}{
		{"PUT", "/open", "", 200}, {"PUT", "/open/k", "payload", 200}, {"GET", "/open/k", "", 200},
		{"GET", "/closed", "", 403}, {"PUT", "/closed/k", "payload", 403}, {"GET", "/", "", 403},
		{"GET", "/.penstock/admin/v1/keys", "", 403}, {"POST", "/.penstock/fabric/v1/sessions", `{"fabric":"tcp"}`, 403},
		{"DELETE", "/open/k", "", 204}, {"DELETE", "/open", "", 204}, {"DELETE", "/closed", "", 403},
	} {
		if status, text := plain(step.method, step.path, step.body); status != step.status {
			t.Errorf("%s %s: %d, want %d: %s", step.method, step.path, status, step.status, text)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "ANYBODY") || !strings.Contains(text, "bucket=open") {
		t.Errorf("the log says %q", text)
	}
}
