package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/client"
)

// TestRDMAFlags: what is said of adapters and of dc reaches the client, and dc says what it is.
func TestRDMAFlags(t *testing.T) {
	var out bytes.Buffer
	a := &app{env: Environment{Stderr: &out}}
	if cfg := a.clientConfig(); cfg.RDMADevices != nil {
		t.Errorf("%q", cfg.RDMADevices)
	}
	args := []string{
		"--fabric", "dc", "--rdma-device", "mlx5_0,mlx5_1/1", "--rdma-device", "mlx5_2", "--endpoint-url", "http://127.0.0.1:1",
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AK")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SK")
	for key, warned := range map[string]bool{"": true, "0x1234": false} {
		out.Reset()
		if key != "" {
			args = append(args, "--dc-key", key)
		}
		if err := a.root().ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		cfg := a.clientConfig()
		if !slices.Equal(cfg.RDMADevices, []string{"mlx5_0", "mlx5_1/1", "mlx5_2"}) || cfg.Fabric != client.DC {
			t.Errorf("%q %q", cfg.Fabric, cfg.RDMADevices)
		}
		if key != "" && cfg.DCKey != key || key == "" && cfg.DCKey != client.DefaultDCKey {
			t.Errorf("key %q, want %q", cfg.DCKey, key)
		}
		cl, err := a.connect()
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
		text := out.String()
		if !strings.Contains(text, "not yet run on hardware") || strings.Contains(text, "everybody knows") != warned {
			t.Errorf("key %q: says %q", key, text)
		}
		args = args[:8]
	}
}
