package pebble

import (
	"testing"

	"github.com/penstock-store/penstock/internal/meta/kv"
	"github.com/penstock-store/penstock/internal/meta/kv/kvtest"
	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

func TestConform(t *testing.T) {
	kvtest.Run(t, func(t testing.TB) kv.Engine {
		e, err := Open(Config{FS: crashfs.New(crashfs.Options{}), Dir: "kv"})
		if err != nil {
			t.Fatal(err)
		}
		return e
	})
}
