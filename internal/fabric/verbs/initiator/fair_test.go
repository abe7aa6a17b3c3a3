//go:build cgo

package initiator

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
	"github.com/penstock-store/penstock/native/fakeverbs"
)

// TestPathsShareARail: where a rail's work requests are short, 64 Moves at once over 16 paths bring the slowest path
// at least half of what they bring the fastest, also when one of them has almost all of the Moves. Oracle: the bytes
// of the Moves that have returned when the rail has moved a certain number.
func TestPathsShareARail(t *testing.T) {
	const paths, size, each = 16, 64 << 10, 40
	for name, movers := range map[string]func(path int) int{
		"even":   func(int) int { return 4 },
		"greedy": func(path int) int { return 1 + 48*(1/(path+1)) }, // the first has 49
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, rigOptions{
				arena: 64 * size, remote: 64 * size, fake: true, Options: Options{Piece: 1024, Depth: 64},
				nic: fakeverbs.Options{
					Devices: []fakeverbs.Device{{MaxCQDepth: 2 * batchWork}, {}}, Latency: 5 * time.Microsecond,
				},
			})
			var moved [paths]atomic.Int64
			var total atomic.Int64
			var all sync.WaitGroup
			start := make(chan struct{})
			worker := 0
			for i := range paths {
				p := g.path()
				for range movers(i) {
					at := worker * size
					worker++
					m := Move{
						Op: native.OpWrite, Remote: g.peer.at(at), RKey: g.peer.mr.RKey(),
						Local: []Segment{g.arena[at : at+size]},
					}
					all.Go(func() {
						<-start
						for total.Load() < paths*each*size {
							if err := p.Move(m); err != nil {
								t.Error(err)
								return
							}
							if total.Add(size) <= paths*each*size {
								moved[i].Add(size)
							}
						}
					})
				}
			}
			close(start)
			all.Wait()
			least, most := moved[0].Load(), moved[0].Load()
			for i := range moved {
				least, most = min(least, moved[i].Load()), max(most, moved[i].Load())
			}
			if worker != 64 || 2*least < most {
				t.Errorf("%d moves at once: the slowest path moved %d bytes, the fastest %d", worker, least, most)
			}
			t.Logf("the slowest path moved %.0f %% of the fastest's bytes", 100*float64(least)/float64(most))
		})
	}
}
