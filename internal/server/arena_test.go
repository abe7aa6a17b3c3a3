package server

import (
	"testing"

	"github.com/penstock-store/penstock/internal/config"
)

// TestArenaIsAsLargeAsTheConfigurationSays: what is told of the memory that will be locked is what is mapped.
func TestArenaIsAsLargeAsTheConfigurationSays(t *testing.T) {
	for _, a := range []config.Arena{
		{FabricBuffers: 1, HTTPBuffers: 1, SmallBuffers: 1}, {FabricBuffers: 3, HTTPBuffers: 5, SmallBuffers: 7},
		config.Default().Arena,
	} {
		s := &Server{config: config.Config{Arena: a}}
		if err := s.openArena(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := uint64(len(s.arena.Memory())); got != a.Bytes() {
			t.Errorf("%+v: %d bytes are mapped, the configuration says %d", a, got, a.Bytes())
		}
		if err := s.arena.Close(); err != nil {
			t.Error(err)
		}
	}
}
