package crashfs

import "math/rand/v2"

// sectorBytes is what a drive writes whole or not at all.
const sectorBytes = 512

type changeKind int

const (
	changeWrite changeKind = iota
	changeTruncate
	changePreallocate
	changePunch
)

// change is one unsynced operation on the bytes of a file. data is immutable.
type change struct {
	kind   changeKind
	off, n int64
	data   []byte
}

// applyWhole does the change as the kernel did.
func (ch change) applyWhole(c *content) {
	switch ch.kind {
	case changeWrite:
		c.write(ch.data, ch.off)
	case changeTruncate:
		c.truncate(ch.n)
	case changePreallocate:
		c.preallocate(ch.off, ch.n)
	case changePunch:
		c.zero(ch.off, min(ch.n, max(0, c.size-ch.off)))
	}
}

// applyPart does the change as a power loss may have left it.
func (ch change) applyPart(c *content, rng *rand.Rand, last bool) {
	switch ch.kind {
	case changeWrite:
		ch.writePart(c, rng, last)
	case changePreallocate:
		// Extents and size may be journalled separately.
		if rng.IntN(2) == 0 {
			c.preallocate(ch.off, ch.n)
		}
	default:
		if rng.IntN(2) == 0 {
			ch.applyWhole(c)
		}
	}
}

// writePart applies none, all, a prefix or scattered sectors of a write; the last write is torn.
func (ch change) writePart(c *content, rng *rand.Rand, last bool) {
	n := len(ch.data)
	shape := rng.IntN(4)
	if last && n > 1 {
		shape = 2
	}
	switch shape {
	case 0:
		// The size may be journalled although the bytes are not there: they read as zero.
		if end := ch.off + int64(n); end > c.size && rng.IntN(2) == 0 {
			c.size = end
		}
	case 1:
		c.write(ch.data, ch.off)
	case 2:
		cut := rng.IntN(n + 1)
		if rng.IntN(2) == 0 {
			cut = cut / sectorBytes * sectorBytes
		}
		c.write(ch.data[:cut], ch.off)
	case 3:
		for at := 0; at < n; {
			step := min(n-at, sectorBytes-int((ch.off+int64(at))%sectorBytes))
			if rng.IntN(2) == 0 {
				c.write(ch.data[at:at+step], ch.off+int64(at))
			}
			at += step
		}
	}
}

// dirty is the byte range whose pages the change touched, given the size before it.
func (ch change) dirty(sizeBefore int64) (off, n int64) {
	if ch.kind == changeTruncate {
		from := min(ch.n, sizeBefore)
		return from, max(ch.n, sizeBefore) - from + pageBytes
	}
	return ch.off, ch.n
}

// entryChange is one unsynced operation on directory entries; rename changes two names at once.
type entryChange struct {
	seq   uint64 // FS-wide order
	steps []entryStep
}

type entryStep struct {
	dir  *inode
	name string
	node *inode // nil removes the name
	was  *inode // for a removal: only if the name still is this inode
}

func (e *entryChange) apply(entries map[*inode]map[string]*inode) {
	for _, s := range e.steps {
		m := entries[s.dir]
		switch {
		case m == nil:
		case s.node != nil:
			m[s.name] = s.node
		case s.was == nil || m[s.name] == s.was:
			delete(m, s.name)
		}
	}
}
