package crashfs

import (
	"math/bits"
	"slices"
)

// pageBytes is the unit of copy on write: small, because most unsynced writes of a log are.
const pageBytes = 4096

// leafPages pages hang below one leaf: 1 MiB, so that a sparse 1 GiB file needs 1,024 pointers.
const leafPages = 256

// token is the identity of the one content that may change a page or leaf in place.
type token struct{ _ byte }

type page struct {
	owner *token
	data  [pageBytes]byte
}

type leaf struct {
	owner *token
	pages [leafPages]*page       // nil reads as zero
	alloc [leafPages / 64]uint64 // pages that have space, whether they hold bytes or not
}

// content is the bytes and size of a file. Copies made by snapshot share pages until one changes.
type content struct {
	size   int64
	leaves []*leaf
	shared bool // the slice of leaves is shared with a snapshot
	owner  *token
}

func newContent() *content { return &content{owner: new(token)} }

// snapshot returns an independent content with the same bytes.
func (c *content) snapshot() *content {
	c.shared = true
	c.owner = new(token)
	return &content{size: c.size, leaves: c.leaves, shared: true, owner: new(token)}
}

// leafAt returns the leaf i for changing.
func (c *content) leafAt(i int) *leaf {
	if c.shared {
		c.leaves = slices.Clone(c.leaves)
		c.shared = false
	}
	for len(c.leaves) <= i {
		c.leaves = append(c.leaves, nil)
	}
	switch l := c.leaves[i]; {
	case l == nil:
		c.leaves[i] = &leaf{owner: c.owner}
	case l.owner != c.owner:
		own := *l
		own.owner = c.owner
		c.leaves[i] = &own
	}
	return c.leaves[i]
}

func (c *content) peek(n int64) *page {
	i := int(n / leafPages)
	if i >= len(c.leaves) || c.leaves[i] == nil {
		return nil
	}
	return c.leaves[i].pages[n%leafPages]
}

// pageAt returns page n for changing.
func (c *content) pageAt(n int64) *page {
	l := c.leafAt(int(n / leafPages))
	slot := int(n % leafPages)
	l.alloc[slot/64] |= 1 << (slot % 64)
	switch p := l.pages[slot]; {
	case p == nil:
		l.pages[slot] = &page{owner: c.owner}
	case p.owner != c.owner:
		own := *p
		own.owner = c.owner
		l.pages[slot] = &own
	}
	return l.pages[slot]
}

func (c *content) write(p []byte, off int64) {
	c.size = max(c.size, off+int64(len(p)))
	for len(p) > 0 {
		in := off % pageBytes
		n := min(int64(len(p)), pageBytes-in)
		copy(c.pageAt(off / pageBytes).data[in:], p[:n])
		p, off = p[n:], off+n
	}
}

// read fills p from off; the caller has cut p at the size.
func (c *content) read(p []byte, off int64) {
	for len(p) > 0 {
		in := off % pageBytes
		n := min(int64(len(p)), pageBytes-in)
		if pg := c.peek(off / pageBytes); pg != nil {
			copy(p[:n], pg.data[in:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+n
	}
}

// zero makes [off, off+n) read as zero and frees the pages wholly inside.
func (c *content) zero(off, n int64) {
	end := off + n
	for off < end {
		in := off % pageBytes
		m := min(end-off, pageBytes-in)
		num := off / pageBytes
		i := int(num / leafPages)
		switch {
		case i >= len(c.leaves):
			return
		case c.leaves[i] == nil:
			off = int64(i+1) * leafPages * pageBytes
			continue
		case m == pageBytes:
			l, slot := c.leafAt(i), num%leafPages
			l.pages[slot] = nil
			l.alloc[slot/64] &^= 1 << (slot % 64)
		case c.peek(num) != nil:
			clear(c.pageAt(num).data[in : in+m])
		}
		off += m
	}
}

func (c *content) truncate(size int64) {
	if size < c.size {
		end := (c.size + pageBytes - 1) / pageBytes * pageBytes
		c.zero(size, end-size)
	}
	c.size = size
}

func (c *content) preallocate(off, n int64) {
	c.size = max(c.size, off+n)
	for num := off / pageBytes; num*pageBytes < off+n; num++ {
		slot := num % leafPages
		c.leafAt(int(num / leafPages)).alloc[slot/64] |= 1 << (slot % 64)
	}
}

// adopt takes the pages of [off, off+n) from src as they are there, space included.
func (c *content) adopt(src *content, off, n int64) {
	for num := off / pageBytes; num*pageBytes < off+n; num++ {
		i, slot := int(num/leafPages), num%leafPages
		bit := uint64(1) << (slot % 64)
		var from *leaf
		if i < len(src.leaves) {
			from = src.leaves[i]
		}
		if from == nil {
			if i >= len(c.leaves) || c.leaves[i] == nil {
				num = int64(i+1)*leafPages - 1
				continue
			}
			from = &leaf{}
		}
		to := c.leafAt(i)
		to.pages[slot] = from.pages[slot]
		to.alloc[slot/64] = to.alloc[slot/64]&^bit | from.alloc[slot/64]&bit
		if p := to.pages[slot]; p != nil && p.owner == src.owner {
			p.owner = nil // shared now: whoever changes it next copies it
		}
	}
}

// diskBytes is the allocated space.
func (c *content) diskBytes() int64 {
	n := 0
	for _, l := range c.leaves {
		if l == nil {
			continue
		}
		for _, w := range l.alloc {
			n += bits.OnesCount64(w)
		}
	}
	return int64(n) * pageBytes
}

// missing is the space that a write or preallocation of [off, off+n) would newly take.
func (c *content) missing(off, n int64) int64 {
	var pages int64
	for num := off / pageBytes; num*pageBytes < off+n; num++ {
		i, slot := int(num/leafPages), num%leafPages
		if i >= len(c.leaves) || c.leaves[i] == nil || c.leaves[i].alloc[slot/64]>>(slot%64)&1 == 0 {
			pages++
		}
	}
	return pages * pageBytes
}
