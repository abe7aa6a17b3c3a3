package rails

import "sync"

const (
	// maxConnects bounds the queue pairs of a rail that connect at once: a kernel that resolves an address holds a
	// thread, and so does an adapter that hangs, which is no concern of the other rails.
	maxConnects = 64
	// connectShare is the part of them that one principal may have: a quarter, so that others need not wait.
	connectShare = 4
)

// turns bounds how many queue pairs connect at once, on a rail and for one principal. A kernel that resolves the
// address of a machine that is not there holds a turn for a second, and a principal may have a thousand sessions:
// without a bound of its own, everybody else would wait behind them.
type turns struct {
	all chan struct{}

	mu    sync.Mutex
	lines map[string]*line
}

// line is where the uses of one principal wait.
type line struct {
	turns chan struct{}
	users int // that wait or have a turn; guarded by turns.mu
}

func newTurns() *turns {
	return &turns{all: make(chan struct{}, maxConnects), lines: make(map[string]*line)}
}

// take waits for a turn of the principal, which the caller gives back by calling leave; nil: stop was closed.
func (t *turns) take(principal string, stop <-chan struct{}) (leave func()) {
	l := t.join(principal)
	if !enter(l.turns, stop) {
		t.quit(principal, l)
		return nil
	}
	if !enter(t.all, stop) {
		<-l.turns
		t.quit(principal, l)
		return nil
	}
	return func() {
		<-t.all
		<-l.turns
		t.quit(principal, l)
	}
}

func (t *turns) join(principal string) *line {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[principal]
	if l == nil {
		l = &line{turns: make(chan struct{}, maxConnects/connectShare)}
		t.lines[principal] = l
	}
	l.users++
	return l
}

func (t *turns) quit(principal string, l *line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(t.lines, principal)
	}
}

// enter waits for room; false: stop was closed.
func enter(room chan struct{}, stop <-chan struct{}) bool {
	select {
	case room <- struct{}{}:
		return true
	case <-stop:
		return false
	}
}
