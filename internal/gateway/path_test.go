package gateway

import (
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/token"
)

// TestPathNames: each kind of token is counted under the name that docs/operations.md has for it.
func TestPathNames(t *testing.T) {
	for want, d := range map[string]token.Descriptor{
		"shm": {Kind: token.Session, Fabric: "shm"}, "tcp": {Kind: token.Session, Fabric: "tcp"},
		"rc": {Kind: token.Session, Fabric: "rc"}, "rc-tokens": {Kind: token.RC}, "other": {Kind: token.DC},
	} {
		if got := pathNames[pathOf(d)]; got != want {
			t.Errorf("%s is counted as %s", want, got)
		}
	}
	if all := strings.Join(pathNames[:], " "); all != "none http shm tcp rc rc-tokens hipobj other" {
		t.Errorf("paths are %s", all)
	}
	if pathNames[pathHip] != "hipobj" {
		t.Errorf("an exchange is counted as %s", pathNames[pathHip])
	}
}
