package drive

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// watch keeps the first failure of an index. It is Pebble's logger, because Pebble reports its
// fatal errors there and expects the process to end.
type watch struct {
	log    *slog.Logger
	failed chan struct{} // closed at the first failure

	mu  sync.Mutex
	err error
}

var _ pebble.Logger = (*watch)(nil)

func newWatch(log *slog.Logger) *watch { return &watch{log: log, failed: make(chan struct{})} }

// Infof drops the lines of flushes and compactions.
func (w *watch) Infof(string, ...any) {}

// Errorf passes a message on.
func (w *watch) Errorf(format string, args ...any) {
	w.log.Warn("index", slog.String("message", fmt.Sprintf(format, args...)))
}

// Fatalf notes a failure that Pebble cannot go on after.
func (w *watch) Fatalf(format string, args ...any) {
	for _, a := range args {
		if cause, ok := a.(error); ok {
			w.fail(fmt.Errorf("index: go on: %w", cause))
			return
		}
	}
	w.fail(fmt.Errorf("index: go on: %s", fmt.Sprintf(format, args...)))
}

func (w *watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
		close(w.failed)
	}
}

func (w *watch) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *watch) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) { w.log.Warn("index: background work", slog.Any("error", err)) },
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			w.log.Error("index: corrupt file", slog.String("file", i.Path))
		},
	}
}
