package cli

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/internal/config"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// outcome is what a command line did.
type outcome struct {
	code           int
	stdout, stderr string
}

// penstock runs one command line.
func penstock(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	var out, diag bytes.Buffer
	code := Main(t.Context(), args, Environment{
		Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &diag, Version: "v-test",
	})
	return outcome{code, out.String(), diag.String()}
}

// noNode makes sure that commands find neither an endpoint nor credentials.
func noNode(t *testing.T) {
	for _, name := range []string{
		"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
		"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE",
	} {
		t.Setenv(name, "")
	}
}

func TestUsageErrors(t *testing.T) {
	noNode(t)
	for _, args := range [][]string{
		{"nonsense"},
		{"ls", "--nonsense"},
		{"ls", "a", "b"},
		{"ls"}, // no endpoint
		{"ls", "http://b"},
		{"stat", "s3://b"},
		{"stat", "s3:///k"},
		{"cat", "s3://b/k", "--range", "5-4"},
		{"cp", "one"},
		{"cp", "a", "b"},
		{"cp", "a", "s3://b/k", "--jobs", "0"},
		{"cp", "a", "s3://b/k", "--jobs", "65"},
		{"rm", "-r", "s3://b/p"}, // no --yes, no terminal
		{"rm"},
		{"mb", "s3://b/k"},
		{"rb", "s3://b/k"},
		{"admin", "key", "delete", "ID"},
		{"config", "check", "--http-read-nonsense"},
		{"config", "check", "--data", "/tmp/x", "--rdma-deadline", "9s"},
		{"config", "check", "--config", "/nonexistent/penstock.yaml"},
		{"config", "check", "--data", "/tmp/x", "--http-tls-cert", "/nonexistent/c", "--http-tls-key", "/nonexistent/k"},
		{"bench", "--profile", "nonsense"},
		{"bench", "--sizes", "64XB", "--dir", t.TempDir()},
		{"bench", "--ops", "delete", "--dir", t.TempDir()},
		{"bench", "--paths", "carrier-pigeon", "--dir", t.TempDir()},
		{"bench", "--in-flight", "2", "--processes", "4", "--dir", t.TempDir()},
	} {
		o := penstock(t, "", args...)
		if o.code != ExitUsage || o.stdout != "" || !strings.HasPrefix(o.stderr, "penstock: ") {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, o.code, o.stdout, o.stderr)
		}
	}
}

// Credentials never show, not even in the message that refuses them.
func TestCredentialsAreNotPrinted(t *testing.T) {
	noNode(t)
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
	t.Setenv("AWS_ACCESS_KEY_ID", "AK")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "very secret")
	o := penstock(t, "", "ls")
	if o.code != ExitUsage || strings.Contains(o.stderr, "very") {
		t.Errorf("%+v", o)
	}
}

func TestHelpAndVersion(t *testing.T) {
	o := penstock(t, "", "--version")
	if o.code != ExitOK || !strings.Contains(o.stdout, "v-test") {
		t.Errorf("%+v", o)
	}
	o = penstock(t, "")
	for _, word := range []string{
		"serve", "cp", "ls", "cat", "rm", "mb", "rb", "stat", "bench", "doctor", "config", "admin", "Exit codes",
	} {
		if !strings.Contains(o.stdout, word) {
			t.Errorf("help does not name %s", word)
		}
	}
	if strings.Contains(penstock(t, "", "bench", "--help").stdout, "worker") {
		t.Error("the worker is not for people")
	}
}

func TestServeGetsItsConfiguration(t *testing.T) {
	var got config.Config
	var diag bytes.Buffer
	dir := t.TempDir()
	line := []string{"serve", "--data", dir, "--listen", "127.0.0.1:7", "--log-format", "json"}
	code := Main(t.Context(), line, Environment{
		Stdout: &diag, Stderr: &diag,
		Serve: func(_ context.Context, cfg config.Config, log *slog.Logger) error {
			got = cfg
			log.Info("hello")
			return nil
		},
	})
	if code != ExitOK || got.Data != dir || got.HTTP.Listen != "127.0.0.1:7" ||
		!strings.Contains(diag.String(), `"msg":"hello"`) {
		t.Errorf("code %d, %+v, %s", code, got, diag.String())
	}
}

func TestConfigPrintIsReadAgain(t *testing.T) {
	o := penstock(t, "", "config", "print", "--data", "/x")
	if o.code != ExitOK || !strings.Contains(o.stdout, "data: /x") {
		t.Fatalf("%+v", o)
	}
	c := config.Default()
	if err := c.Read(strings.NewReader(o.stdout)); err != nil || c.Data != "/x" {
		t.Errorf("%v, data %q", err, c.Data)
	}
	if o := penstock(t, "", "config", "check", "--data", "/x", "--json"); o.stdout != "{\"ok\":true}\n" {
		t.Errorf("%+v", o)
	}
}

// TestConfigCheckReadsCertificates: a file that is missing or no certificate is found before a start.
func TestConfigCheckReadsCertificates(t *testing.T) {
	cert, key := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	args := []string{"config", "check", "--data", "/x", "--http-tls-cert", cert, "--http-tls-key", key}
	for _, text := range []string{"", "no certificate"} {
		if text != "" {
			for _, name := range []string{cert, key} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if o := penstock(t, "", args...); o.code == ExitOK || !strings.Contains(o.stderr, cert) {
			t.Errorf("%q: %+v", text, o)
		}
	}
}

func TestParseURI(t *testing.T) {
	for text, want := range map[string][2]string{
		"s3://b": {"b", ""}, "s3://b/": {"b", ""}, "s3://b/k": {"b", "k"}, "s3://b//k": {"b", "/k"},
		"s3://b/a b%20?x#y": {"b", "a b%20?x#y"}, "s3://b/../c": {"b", "../c"},
	} {
		n, err := parseURI(text)
		if err != nil || n.Bucket != want[0] || n.Key != want[1] {
			t.Errorf("%q: %+v %v", text, n, err)
		}
	}
}

func TestUnsafeNames(t *testing.T) {
	for _, rel := range []string{"", ".", "..", "../x", "a/../b", "a//b", "/a", "a/", "a/.", "./a", "a\x00b"} {
		if unsafeName(rel) == "" {
			t.Errorf("%q is taken for a file name", rel)
		}
	}
	for _, rel := range []string{"a", "a/b", "...", "..a", "a b", "ü/名", "-rf", `a\b`, "a\nb"} {
		if reason := unsafeName(rel); reason != "" {
			t.Errorf("%q is refused: %s", rel, reason)
		}
	}
}

func TestPrintable(t *testing.T) {
	for key, want := range map[string]string{
		"a b": "a b", "ü": "ü", "a\nb": `"a\nb"`, "\x1b[2J": `"\x1b[2J"`, "x\x7f": `"x\x7f"`,
	} {
		if got := printable(key); got != want {
			t.Errorf("%q shown as %s", key, got)
		}
	}
}
