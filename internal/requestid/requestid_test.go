package requestid_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/requestid"
)

func TestIDsDiffer(t *testing.T) {
	form := regexp.MustCompile(`^[0-9A-F]{16}$`)
	s := requestid.NewSource()
	seen := map[string]bool{}
	for range 100_000 {
		id := s.Next()
		if !form.MatchString(id) || seen[id] {
			t.Fatalf("id %q, seen before: %v", id, seen[id])
		}
		seen[id] = true
	}
	if other := requestid.NewSource(); seen[other.Next()] {
		t.Error("another source gives an id of the first")
	}
}

func TestLinesCarryTheIDOfTheirContext(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(requestid.NewHandler(slog.NewTextHandler(&out, nil))).With("node", "n1")
	ctx := requestid.NewContext(context.Background(), "00000000000000AB")
	log.WarnContext(ctx, "with")
	log.Warn("without")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "request_id=00000000000000AB") ||
		!strings.Contains(lines[0], "node=n1") || strings.Contains(lines[1], "request_id") {
		t.Errorf("%q", lines)
	}
	if got := requestid.FromContext(context.Background()); got != "" {
		t.Errorf("id %q of no request", got)
	}
}

func BenchmarkNext(b *testing.B) {
	s := requestid.NewSource()
	b.ReportAllocs()
	for b.Loop() {
		_ = s.Next()
	}
}
