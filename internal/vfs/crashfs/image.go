package crashfs

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
)

// Mode says what of the unsynced changes survives the power loss.
type Mode int

// Modes; see the package documentation.
const (
	LoseAll Mode = iota
	KeepAll
	KeepSome
	Scatter
)

// String names the mode.
func (m Mode) String() string { return [...]string{"lose-all", "keep-all", "keep-some", "scatter"}[m] }

// Point is a moment right after a mutating operation, while the FS stands still.
type Point struct {
	N    uint64 // number of the operation, from 1
	Op   string // create, write, sync, truncate, preallocate, punch, rename, remove, mkdir, syncdir
	Name string // as the caller gave it

	fs *FS
}

// Image is FS.Image at this point.
func (p Point) Image(mode Mode, seed uint64) *FS { return p.fs.image(mode, seed) }

// Halt is FS.Halt at this point: the operation itself still succeeds.
func (p Point) Halt() { p.fs.halted = true }

// Image returns an independent FS as found after a power loss now. The same seed at the same
// point of the same operations gives the same image; only KeepSome and
// Scatter use it.
func (fs *FS) Image(mode Mode, seed uint64) *FS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.image(mode, seed)
}

// image does what Image says. fs.mu is held.
func (fs *FS) image(mode Mode, seed uint64) *FS {
	rng := rand.New(rand.NewPCG(seed, fs.ops))
	entries := fs.survivingEntries(mode, rng)
	img := &FS{opts: fs.opts, locks: map[*inode]bool{}, nextID: fs.nextID}
	copies := map[*inode]*inode{}
	var copyNode func(n *inode) *inode
	copyNode = func(n *inode) *inode {
		if c, ok := copies[n]; ok {
			return c
		}
		c := &inode{id: n.id}
		copies[n] = c
		if !n.isDir() {
			c.now = n.surviving(mode, rng)
			c.durable = c.now.snapshot()
			return c
		}
		c.entries = make(map[string]*inode, len(entries[n]))
		for _, name := range slices.Sorted(maps.Keys(entries[n])) {
			c.entries[name] = copyNode(entries[n][name])
		}
		c.durableEntries = maps.Clone(c.entries)
		return c
	}
	img.root = copyNode(fs.root)
	return img
}

// surviving returns the bytes of a file after the crash.
func (n *inode) surviving(mode Mode, rng *rand.Rand) *content {
	if mode == KeepAll && !n.dropped {
		return n.now.snapshot()
	}
	c := n.durable.snapshot()
	if mode == LoseAll {
		return c
	}
	for i, ch := range n.pending {
		if mode == KeepAll {
			ch.applyWhole(c)
		} else {
			ch.applyPart(c, rng, i == len(n.pending)-1)
		}
	}
	return c
}

// survivingEntries returns the entries of every directory after the crash.
func (fs *FS) survivingEntries(mode Mode, rng *rand.Rand) map[*inode]map[string]*inode {
	entries := map[*inode]map[string]*inode{}
	var dirs []*inode
	var collect func(n *inode)
	collect = func(n *inode) {
		if _, seen := entries[n]; seen || !n.isDir() {
			return
		}
		entries[n] = maps.Clone(n.durableEntries)
		dirs = append(dirs, n)
		for _, m := range []map[string]*inode{n.durableEntries, n.entries} {
			for _, c := range m {
				collect(c)
			}
		}
		for _, e := range n.changes {
			for _, s := range e.steps {
				if s.node != nil {
					collect(s.node)
				}
			}
		}
	}
	collect(fs.root)
	slices.SortFunc(dirs, func(a, b *inode) int { return cmp.Compare(a.id, b.id) })

	keep := map[*entryChange]bool{}
	for _, d := range dirs {
		prefix := rng.IntN(len(d.changes) + 1)
		for i, e := range d.changes {
			switch {
			case mode == LoseAll:
			case mode == KeepAll:
				keep[e] = true
			case mode == KeepSome:
				keep[e] = i < prefix
			default:
				keep[e] = rng.IntN(2) == 0
			}
		}
	}
	kept := make([]*entryChange, 0, len(keep))
	for e, k := range keep {
		if k {
			kept = append(kept, e)
		}
	}
	slices.SortFunc(kept, func(a, b *entryChange) int { return cmp.Compare(a.seq, b.seq) })
	for _, e := range kept {
		e.apply(entries)
	}
	return entries
}
