package verbs

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric/verbs/initiator"
	"github.com/penstock-store/penstock/native"
)

// TestKeysAreNotPrinted: no verb of fmt and no log handler prints a client's key, wherever it stands.
func TestKeysAreNotPrinted(t *testing.T) {
	const key = 123454321
	b := &backing{address: 5, keys: keysOf([]uint32{key})}
	m := initiator.Move{Op: native.OpRead, RKey: key}
	var log strings.Builder
	for _, arg := range []any{
		b, *b, remote{memory: b}, &remote{memory: b}, m, &m, []initiator.Move{m}, struct{ M initiator.Move }{m},
	} {
		text := ""
		for _, verb := range []string{"%v", "%+v", "%#v", "%d", "%x", "%s", "%q"} {
			text += fmt.Sprintf(verb, arg)
		}
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "a", arg)
		for _, secret := range []string{fmt.Sprint(key), fmt.Sprintf("%x", key)} {
			if strings.Contains(text+log.String(), secret) {
				t.Errorf("%T prints a key", arg)
			}
		}
	}
}
