// Package accesslog writes one line of JSON per request, without ever holding a request up.
//
// Called by: gateway (Record), server (the rest).
//
// Invariants:
//  1. Record does not block and does not allocate once its buffers have grown: a line that finds no room
//     is dropped and counted.
//  2. Lines are whole: each is valid JSON and ends in a newline, whatever clients put into names, whatever
//     the disk does in the middle of a write, and across Reopen.
//  3. Reopen loses no line: what was recorded before it goes to the old or to the new file.
//  4. One goroutine writes; it has ended when Close has returned nil.
//  5. Nothing secret is in an Entry: no signature, token, query string or secret key has a field.
//
// Locks: mu, held for the copy of one line or for the swap of two buffers.
//
// What it does not do: rotation and removal of old files (logrotate, then SIGHUP), syncing the file to the
// disk: power loss may take the last lines.
package accesslog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// bufferBytes bounds the lines that wait; there are two such buffers. At 20,000 lines of 500 bytes a
	// second it is 400 ms of a disk that does not take them.
	bufferBytes = 4 << 20
	// startBytes is what a buffer begins with.
	startBytes = 64 << 10
	// wakeBytes is when the writer is woken before its time: large enough to make writes rare.
	wakeBytes = 256 << 10
	// flushEvery is the longest that a line waits on a disk that takes it.
	flushEvery = time.Second
	// complainEvery bounds the lines in the node's log about lines that are missing here.
	complainEvery = time.Minute
	// fileMode lets the group of the log's reader in and nobody else: keys and addresses are in it.
	fileMode = 0o640
)

// ErrClosed says that the log was closed before.
var ErrClosed = errors.New("accesslog: closed")

// Options of a Log.
type Options struct {
	Path string    // of the file, which is appended to
	To   io.Writer // instead of a file, such as standard output; stays the caller's
	Log  *slog.Logger
}

// Log takes entries and has them written.
type Log struct {
	o       Options
	open    func() (io.WriteCloser, error)
	limit   int // bytes that wait
	scratch sync.Pool

	mu      sync.Mutex
	filling []byte // guarded by mu
	waiting int64  // lines in filling; guarded by mu
	closed  bool   // guarded by mu

	wake   chan struct{}
	reopen chan chan error
	stop   chan struct{}
	done   chan struct{}

	lines, dropped, failures atomic.Int64

	// Of the writer's goroutine:
	file       io.WriteCloser
	writing    []byte // lines on their way; [0, sent) are in the file
	sent       int
	onWay      int64 // lines in writing
	complained time.Time
	told       int64 // drops that were complained about
}

// Stats are counts since Open.
type Stats struct {
	Lines    int64 // written
	Dropped  int64 // not written: no room, or still waiting when the log was closed
	Failures int64 // writes and openings that went wrong
}

// Open opens or makes the file and starts the writer. Close it.
func Open(o Options) (*Log, error) {
	l := newLog(o)
	if o.To != nil {
		l.open = func() (io.WriteCloser, error) { return kept{o.To}, nil }
	}
	return l, l.start()
}

func newLog(o Options) *Log {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Log{
		o: o, limit: bufferBytes, filling: make([]byte, 0, startBytes), writing: make([]byte, 0, startBytes),
		wake: make(chan struct{}, 1), reopen: make(chan chan error), stop: make(chan struct{}),
		done: make(chan struct{}),
	}
	l.scratch.New = func() any { return new(make([]byte, 0, 1024)) }
	l.open = func() (io.WriteCloser, error) {
		return os.OpenFile(o.Path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, fileMode)
	}
	return l
}

func (l *Log) start() error {
	file, err := l.open()
	if err != nil {
		return fmt.Errorf("accesslog: open: %w", err)
	}
	l.file = file
	go l.run()
	return nil
}

// kept is a writer that is not ours to close.
type kept struct{ io.Writer }

// Close implements io.Closer.
func (kept) Close() error { return nil }

// Record notes one request. It may be called by many goroutines; e is not kept.
func (l *Log) Record(e *Entry) {
	scratch := l.scratch.Get().(*[]byte)
	line := e.append((*scratch)[:0])
	*scratch = line
	l.mu.Lock()
	room := !l.closed && len(l.filling)+len(line) <= l.limit
	if room {
		l.filling = append(l.filling, line...)
		l.waiting++
	}
	full := len(l.filling) >= wakeBytes
	l.mu.Unlock()
	l.scratch.Put(scratch)
	if !room {
		l.dropped.Add(1)
	}
	if full {
		select {
		case l.wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

// Stats reads the counts.
func (l *Log) Stats() Stats {
	return Stats{Lines: l.lines.Load(), Dropped: l.dropped.Load(), Failures: l.failures.Load()}
}

// Reopen goes on in a new file of the same path, after everything recorded so far was written to the old
// one. When the new file cannot be opened, the old one stays in use. When ctx ends first, the change comes
// once the old file answers.
func (l *Log) Reopen(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case l.reopen <- answer:
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("accesslog: reopen: %w", ctx.Err())
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("accesslog: reopen: %w", ctx.Err())
	}
}

// Close writes what waits and ends the writer. When ctx ends first, the writer hangs in the disk: it ends
// as soon as that answers.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if !again {
		close(l.stop)
	}
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("accesslog: close: %w", ctx.Err())
	}
}

func (l *Log) run() {
	defer close(l.done)
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.flush()
		case <-l.wake:
			l.flush()
		case answer := <-l.reopen:
			answer <- l.renew()
		case <-l.stop:
			l.flush()
			l.end()
			return
		}
	}
}

// flush writes what waits. What the file does not take stays for the next time.
func (l *Log) flush() {
	if l.sent == len(l.writing) {
		l.swap()
	}
	for l.sent < len(l.writing) {
		n, err := l.file.Write(l.writing[l.sent:])
		l.sent += n
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			l.failures.Add(1)
			l.complain(err)
			return
		}
		if l.sent == len(l.writing) {
			l.lines.Add(l.onWay)
			l.onWay = 0
			l.swap()
		}
	}
	l.complain(nil)
}

// swap takes what was recorded meanwhile. Everything taken before is written.
func (l *Log) swap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing, l.filling = l.filling, l.writing[:0]
	l.onWay, l.waiting = l.waiting, 0
	l.sent = 0
}

// renew changes to a new file. A line of which the old file has only a part is written again as a whole.
func (l *Log) renew() error {
	l.flush()
	file, err := l.open()
	if err != nil {
		l.failures.Add(1)
		l.complain(err)
		return fmt.Errorf("accesslog: reopen: %w", err)
	}
	l.sent = bytes.LastIndexByte(l.writing[:l.sent], '\n') + 1
	closeErr := l.file.Close()
	l.file = file
	if closeErr != nil { // the kernel could not keep what it had taken
		l.failures.Add(1)
		l.complain(closeErr)
	}
	return nil
}

// end counts what could not be written and closes the file.
func (l *Log) end() {
	left := int64(bytes.Count(l.writing[l.sent:], []byte{'\n'})) // a line that went out in part is not there
	l.lines.Add(l.onWay - left)
	l.mu.Lock()
	left += l.waiting
	l.mu.Unlock()
	l.dropped.Add(left)
	if err := l.file.Close(); err != nil {
		l.failures.Add(1)
		l.complained = time.Time{}
		l.complain(err)
	}
}

// complain tells of failures and drops, once in a while.
func (l *Log) complain(err error) {
	dropped := l.dropped.Load()
	if err == nil && dropped == l.told || time.Since(l.complained) < complainEvery {
		return
	}
	l.complained, l.told = time.Now(), dropped
	l.o.Log.Warn("access log is not complete", "dropped", dropped, "failures", l.failures.Load(), "error", err)
}
