package cli

import (
	"crypto/rand"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress is a bar on a terminal, and nothing elsewhere.
type progress struct{ bar *progressbar.ProgressBar }

func (a *app) progress(items []item) progress {
	if a.quiet || a.json || !onTerminal(a.env.Stderr) {
		return progress{}
	}
	var total int64
	for _, it := range items {
		total += it.bytes
	}
	return progress{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(a.env.Stderr),
		progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)}
}

func (p progress) add(n int64) {
	if p.bar != nil {
		_ = p.bar.Add64(n) // a bar that cannot be drawn changes nothing
	}
}

func (p progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

func randomName() string { return rand.Text()[:12] }
