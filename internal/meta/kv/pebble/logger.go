package pebble

import (
	"context"
	"fmt"
	"log/slog"

	pdb "github.com/cockroachdb/pebble/v2"
)

// logger takes what Pebble logs. Pebble calls Fatalf when it cannot go on and expects it not to
// return; here it ends the engine instead of the process.
type logger struct {
	log   *slog.Logger
	guard *guard
}

var _ pdb.Logger = logger{}

// Infof implements pebble.Logger.
func (l logger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("pebble event", slog.String("event", fmt.Sprintf(format, args...)))
	}
}

// Errorf implements pebble.Logger.
func (l logger) Errorf(format string, args ...any) {
	l.log.Error("pebble error", slog.String("event", fmt.Sprintf(format, args...)))
}

// Fatalf implements pebble.Logger.
func (l logger) Fatalf(format string, args ...any) {
	err := &fatalError{text: "pebble: go on: " + fmt.Sprintf(format, args...)}
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err.cause = cause
		}
	}
	l.log.Error("pebble fatal error", slog.Any("error", err))
	l.guard.failure.set(err, failAll)
}

// fatalError is a text of Pebble's and the error that it speaks of.
type fatalError struct {
	text  string
	cause error
}

func (e *fatalError) Error() string { return e.text }
func (e *fatalError) Unwrap() error { return e.cause }

// events are those that an operator should see.
func (l logger) events() *pdb.EventListener {
	return &pdb.EventListener{
		BackgroundError: func(err error) {
			l.log.Warn("pebble background work ended with an error", slog.Any("error", err))
		},
		DataCorruption: func(info pdb.DataCorruptionInfo) {
			l.log.Error("pebble found a corrupt file", slog.String("file", info.Path))
		},
		WriteStallBegin: func(info pdb.WriteStallBeginInfo) {
			l.log.Warn("pebble stalls writes", slog.String("reason", info.Reason))
			l.guard.stall(true)
		},
		WriteStallEnd: func() {
			l.guard.stall(false)
			l.log.Info("pebble goes on with writes")
		},
	}
}
