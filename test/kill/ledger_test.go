package kill

import (
	"crypto/md5"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"sync"
)

// state of a key: generation 0 is absent.
type state struct {
	generation uint64
	size       int
}

// entry is what may be true of one key.
type entry struct {
	acknowledged state
	open         []state // asked for since, answer unknown
}

// ledger is the oracle. Each key has one writer at a time.
type ledger struct {
	mu   sync.Mutex
	keys map[string]*entry // guarded by mu
	next uint64            // guarded by mu
}

func newLedger() *ledger { return &ledger{keys: map[string]*entry{}} }

// begin notes that a write of size bytes (< 0: a delete) is asked for.
func (l *ledger) begin(key string, size int) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	var s state
	if size >= 0 {
		l.next++
		s = state{generation: l.next, size: size}
	}
	e := l.keys[key]
	if e == nil {
		e = &entry{}
		l.keys[key] = e
	}
	e.open = append(e.open, s)
	return s
}

// acknowledge notes that the write was answered with success.
func (l *ledger) acknowledge(key string, s state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys[key].acknowledged = s
	l.keys[key].open = nil
}

// candidates are the states that the key may be in.
func (l *ledger) candidates(key string) []state {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.keys[key]
	if e == nil {
		return []state{{}}
	}
	return append([]state{e.acknowledged}, e.open...)
}

// snapshot lists all keys.
func (l *ledger) snapshot() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]string, 0, len(l.keys))
	for k := range l.keys {
		all = append(all, k)
	}
	return all
}

// fill writes the contents of the state into p.
func fill(key string, s state, p []byte) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], h.Sum64())
	binary.LittleEndian.PutUint64(seed[8:], s.generation)
	source := rand.NewChaCha8(seed)
	_, _ = source.Read(p[:s.size])
}

// sum is a digest of the contents of the state, through scratch memory of at least its size.
func sum(key string, s state, scratch []byte) [md5.Size]byte {
	fill(key, s, scratch)
	return md5.Sum(scratch[:s.size])
}
