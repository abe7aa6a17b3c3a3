package config_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/config"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func flags(t *testing.T, args ...string) *config.Flags {
	t.Helper()
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	f := config.RegisterFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPrecedenceIsDefaultsFileFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "penstock.yaml")
	text := "data: /from/file\nhttp:\n  listen: 127.0.0.1:1\n  region: eu-west-1\n" +
		"limits:\n  connections: 7\n  stall_timeout: 5s\nstorage:\n  reserve: 2GB\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, flags(t, "--listen=127.0.0.1:2", "--rdma-shm=false", "--domain", "a.test,b.test",
		"--domain", "c.test", "--limits-min-rate", "1KiB"), env())
	if err != nil {
		t.Fatal(err)
	}
	if c.Data != "/from/file" || c.HTTP.Region != "eu-west-1" || c.Limits.Connections != 7 ||
		c.Limits.StallTimeout != 5*time.Second || c.Storage.Reserve != 2e9 {
		t.Errorf("the file's values are not there: %+v", c)
	}
	if c.HTTP.Listen != "127.0.0.1:2" || c.RDMA.Shm || c.Limits.MinRate != 1024 ||
		!reflect.DeepEqual(c.HTTP.Domains, []string{"a.test", "b.test", "c.test"}) {
		t.Errorf("the flags' values are not there: %+v", c)
	}
	if d := config.Default(); c.HTTP.AdminListen != d.HTTP.AdminListen || c.Limits.Requests != d.Limits.Requests {
		t.Errorf("a default is gone: %+v", c)
	}
	if !reflect.DeepEqual(c.Drives, []string{"/from/file/drive"}) || c.RDMA.ShmSocket != "/from/file/fabric.sock" {
		t.Errorf("derived values: drives %v, socket %q", c.Drives, c.RDMA.ShmSocket)
	}
}

// TestSocketIsForEveryWorkingDirectory: the node tells clients the path of its socket.
func TestSocketIsForEveryWorkingDirectory(t *testing.T) {
	wd := t.TempDir()
	t.Chdir(wd)
	for args, want := range map[string]string{
		"--data=./d":                                 filepath.Join(wd, "d", "fabric.sock"),
		"--data=/d":                                  "/d/fabric.sock",
		"--data=/d --rdma-shm-socket=s":              filepath.Join(wd, "s"),
		"--data=/d --rdma-shm-socket=@s":             "@s",
		"--data=/" + strings.Repeat("d", 107):        "", // the fabric draws a name
		"--data=./" + strings.Repeat("x/", 60) + "d": "",
	} {
		c, err := config.Load("", flags(t, strings.Fields(args)...), env())
		if err != nil || c.RDMA.ShmSocket != want {
			t.Errorf("%s: socket %q, error %v, want %q", args, c.RDMA.ShmSocket, err, want)
		}
	}
}

func TestMistakesAreErrors(t *testing.T) {
	for name, text := range map[string]string{
		"unknown key":        "data: /d\nlimits:\n  conections: 3\n",
		"unknown section":    "data: /d\nhttpd: {}\n",
		"wrong type":         "data: /d\nlimits:\n  connections: many\n",
		"bad size":           "data: /d\nstorage:\n  reserve: 3 parsecs\n",
		"negative size":      "data: /d\nstorage:\n  reserve: -1\n",
		"overflowing size":   "data: /d\nstorage:\n  reserve: 9999999999GiB\n",
		"bad duration":       "data: /d\nstorage:\n  grace: soon\n",
		"two documents":      "data: /d\n---\ndata: /e\n",
		"no data":            "http:\n  listen: 127.0.0.1:0\n",
		"no port":            "data: /d\nhttp:\n  listen: localhost\n",
		"header limit":       "data: /d\nlimits:\n  header_bytes: 4KiB\n",
		"deadline over cap":  "data: /d\nrdma:\n  deadline: 9s\n",
		"session deadline":   "data: /d\nrdma:\n  session_deadline: 301s\n",
		"decline":            "data: /d\nrdma:\n  decline: \"200\"\n",
		"alias":              "data: /d\nrdma:\n  aliases: [x-scal-rdma]\n",
		"zero connections":   "data: /d\nlimits:\n  connections: 0\n",
		"two drives":         "data: /d\ndrives: [/a, /b]\n",
		"half of TLS":        "data: /d\nhttp:\n  tls_cert: x.pem\n",
		"half of a pair":     "data: /d\nhttp:\n  tls_cert: x\n  tls_key: y\n  tls_more: [\"a:\"]\n",
		"only more TLS":      "data: /d\nhttp:\n  tls_more: [\"a:b\"]\n",
		"client TLS mode":    "data: /d\nhttp:\n  tls_client_auth: maybe\n",
		"client TLS, no CA":  "data: /d\nhttp:\n  tls_cert: x\n  tls_key: y\n  tls_client_auth: require\n",
		"client TLS, no TLS": "data: /d\nhttp:\n  tls_client_ca: c\n  tls_client_auth: request\n",
		"client CA, off":     "data: /d\nhttp:\n  tls_cert: x\n  tls_key: y\n  tls_client_ca: c\n",
		"log level":          "data: /d\nlog:\n  level: loud\n",
		"client network":     "data: /d\nrdma:\n  client_networks: [10.0.0.1]\n",
		"wrapped network":    "data: /d\nrdma:\n  client_networks: [\"::ffff:10.0.0.0/104\"]\n",
		"rc address":         "data: /d\nrdma:\n  rc_listen: here\n",
		"tcp on all":         "data: /d\nrdma:\n  tcp_listen: 0.0.0.0:9100\n",
		"tcp on all of IPv6": "data: /d\nrdma:\n  tcp_listen: \"[::]:9100\"\n",
		"rc on all":          "data: /d\nrdma:\n  rc_listen: \":9101\"\n",
		"told all":           "data: /d\nrdma:\n  tcp_advertise: 0.0.0.0:9100\n",
		"told no host":       "data: /d\nrdma:\n  rc_advertise: \":9101\"\n",
		"told port 0":        "data: /d\nrdma:\n  rc_advertise: 10.0.0.1:0\n",
		"told no port":       "data: /d\nrdma:\n  tcp_advertise: storage\n",
		"long socket path":   "data: /d\nrdma:\n  shm_socket: /" + strings.Repeat("x", 120) + "\n",
		"credential in file": "data: /d\nroot:\n  secretkey: x\n",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := config.Load(file, nil, nil); !errors.Is(err, config.ErrInvalid) {
				t.Fatalf("got %v, want ErrInvalid", err)
			}
		})
	}
}

func TestCredentialsComeInPairsAndAreRedacted(t *testing.T) {
	f := flags(t, "--data=/d")
	const secret = "correct-horse-battery"
	if _, err := config.Load("", f, env(config.EnvRootAccessKey, "AK")); !errors.Is(err, config.ErrInvalid) {
		t.Errorf("access key alone: %v", err)
	}
	short := env(config.EnvRootAccessKey, "AK", config.EnvRootSecretKey, "short")
	if _, err := config.Load("", f, short); !errors.Is(err, config.ErrInvalid) {
		t.Errorf("short secret: %v", err)
	}
	c, err := config.Load("", f, env(config.EnvRootAccessKey, "AK", config.EnvRootSecretKey, secret))
	if err != nil {
		t.Fatal(err)
	}
	if c.Root.SecretKey != secret {
		t.Fatal("the secret did not arrive")
	}
	var out strings.Builder
	if err := c.Print(&out); err != nil {
		t.Fatal(err)
	}
	out.WriteString(fmt.Sprintf("%v %+v %#v %s", c, c, c, c.Root))
	if strings.Contains(out.String(), secret) {
		t.Error("the secret is printed")
	}
}

// TestPrintReadsBack: the oracle is Read itself.
func TestPrintReadsBack(t *testing.T) {
	f := flags(t, "--data=/d", "--storage-reserve=3GiB", "--rdma-deadline=4s", "--domain=x.test",
		"--http-tls-cert=c", "--http-tls-key=k", "--http-tls-more=a:b",
		"--rdma-devices=mlx5_0", "--rdma-client-networks=10.0.0.0/8,fe80::/10", "--rdma-aliases=cuobj",
		"--rdma-decline=spec")
	c, err := config.Load("", f, env())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := c.Print(&out); err != nil {
		t.Fatal(err)
	}
	again := config.Config{}
	if err := again.Read(strings.NewReader(out.String())); err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	if !reflect.DeepEqual(c, again) {
		t.Errorf("printed and read again:\n%+v\nwas\n%+v", again, c)
	}
}

// TestAdvertisedAddress: a node may listen on all addresses when clients are told one of them.
func TestAdvertisedAddress(t *testing.T) {
	for _, args := range [][]string{
		{"--rdma-tcp-listen=:9100", "--rdma-tcp-advertise=storage:9100"},
		{"--rdma-rc-listen=0.0.0.0:9101", "--rdma-rc-advertise=[fd00::1]:9101"},
		{"--rdma-tcp=false", "--rdma-tcp-listen=:9100"},
	} {
		if _, err := config.Load("", flags(t, append(args, "--data=/d")...), env()); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// TestAnonymousBucketStaysOnThisMachine: it is refused with TLS and with any address that others reach, in words that
// name both keys.
func TestAnonymousBucketStaysOnThisMachine(t *testing.T) {
	for args, key := range map[string]string{
		"":                                     "",
		"--listen=[::1]:9000":                  "",
		"--listen=127.7.7.7:0 --admin-listen=": "",
		"--listen=[::ffff:127.0.0.1]:0":        "",
		"--rdma-tcp=false --rdma-tcp-listen=10.0.0.1:0 --rdma-rc=false --rdma-rc-listen=10.0.0.1:0": "",

		"--listen=:9000":                     "http.listen",
		"--listen=0.0.0.0:9000":              "http.listen",
		"--listen=[::]:9000":                 "http.listen",
		"--listen=10.0.0.1:9000":             "http.listen",
		"--listen=localhost:9000":            "http.listen", // whatever that is
		"--listen=127.0.0.1.example.com:1":   "http.listen",
		"--listen=[fe80::1%lo]:9000":         "http.listen",
		"--admin-listen=10.0.0.1:9001":       "http.admin_listen",
		"--admin-listen=:9001":               "http.admin_listen",
		"--rdma-tcp-listen=10.0.0.1:9100":    "rdma.tcp_listen",
		"--rdma-tcp-advertise=10.0.0.1:9100": "rdma.tcp_advertise",
		"--rdma-rc-listen=10.0.0.1:9101":     "rdma.rc_listen",
		"--rdma-rc-advertise=storage:9101":   "rdma.rc_advertise",

		"--http-tls-cert=c --http-tls-key=k":                        "http.tls_cert",
		"--http-tls-cert=c --http-tls-key=k --http-tls-more=c:k":    "http.tls_cert",
		"--http-tls-client-auth=request --http-tls-client-ca=a":     "http.tls_cert",
		"--http-tls-cert=c --http-tls-key=k --listen=10.0.0.1:9000": "http.listen",
	} {
		t.Run(args, func(t *testing.T) {
			all := strings.Fields(args + " --data=/d --test-anonymous-bucket=open")
			_, err := config.Load("", flags(t, all...), env())
			if key == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "test.anonymous_bucket, "+key+":") {
				t.Errorf("got %v, want an error about test.anonymous_bucket and %s", err, key)
			}
			if key == "http.tls_cert" && strings.Contains(args, "client") {
				return // that is a mistake by itself
			}
			if _, err := config.Load("", flags(t, all[:len(all)-1]...), env()); err != nil {
				t.Errorf("without the bucket: %v", err)
			}
		})
	}
}

// TestDocumentedExamplesLoad: the configuration files that docs/operations.md shows are the oracle.
func TestDocumentedExamplesLoad(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	for block := range strings.SplitSeq(string(text), "\n\n") {
		if !strings.HasPrefix(block, "    data: ") {
			continue
		}
		examples++
		c := config.Default()
		if err := c.Read(strings.NewReader(block)); err != nil {
			t.Errorf("%v in\n%s", err, block)
		} else if err := c.Validate(); err != nil {
			t.Errorf("%v in\n%s", err, block)
		}
	}
	if examples == 0 {
		t.Error("docs/operations.md shows no configuration file")
	}
}

// TestNoFileIsAMistakeOfTheConfiguration: commands end with the code of wrong usage then.
func TestNoFileIsAMistakeOfTheConfiguration(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"), nil, nil)
	if !errors.Is(err, config.ErrInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestDocumentedSettingsLoad: what documents show as a key with a value, people write into their files.
func TestDocumentedSettingsLoad(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	setting := regexp.MustCompile("`(http|limits|arena|rdma|storage|log|test)\\.([a-z_0-9]+): ([^`]+)`")
	seen := 0
	for _, name := range append(files, "../../README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range setting.FindAllStringSubmatch(string(text), -1) {
			seen++
			c := config.Default()
			if err := c.Read(strings.NewReader(m[1] + ":\n  " + m[2] + ": " + m[3] + "\n")); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(name), m[0], err)
			}
		}
	}
	if seen == 0 {
		t.Error("no document shows a setting")
	}
}

// TestEveryKeyIsDocumented: the reference in docs/operations.md is the oracle, both ways.
func TestEveryKeyIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range config.Keys() {
		if k.Doc == "" {
			t.Errorf("%s has no doc tag", k.Name)
		}
		row := fmt.Sprintf("| `%s` | `--%s` | %s | %s |", k.Name, k.Flag, code(k.Default), k.Doc)
		if !strings.Contains(string(text), row+"\n") {
			t.Errorf("docs/operations.md lacks the row\n%s", row)
		}
	}
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]config.Bytes{
		"0": 0, "512": 512, "1KiB": 1024, "1kB": 1000, "1 GB": 1e9, "3 GiB": 3 << 30, "7B": 7, "2TiB": 2 << 40,
	} {
		got, err := config.ParseBytes(text)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
		again, err := config.ParseBytes(got.String())
		if err != nil || again != got {
			t.Errorf("%q prints as %q, which reads as %d, %v", text, got, again, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("data: /d\nlimits:\n  connections: 7\n")
	f.Add("a: &a [*a]\n")
	f.Add("storage:\n  reserve: 1e9\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		c := config.Default()
		if err := c.Read(strings.NewReader(text)); err == nil {
			_ = c.Validate()
		}
	})
}
