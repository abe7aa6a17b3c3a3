package gateway_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
)

// TestHipObjCancelMeetsReady: CANCEL and READY at the same time, and two READYs. Whatever comes first, the answers and
// what is there afterwards agree: stored or moved exactly where a FINAL says so, by one READY at most, and nothing
// changes after both answers.
func TestHipObjCancelMeetsReady(t *testing.T) {
	n, x, p := hipNode(t)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for i := range rounds {
		op, key := "PUT", fmt.Sprintf("race-%d", i)
		if i%2 == 1 {
			op, key = "GET", "k"
		}
		payload := randomBytes(300 + i)
		copy(n.fabric.memory, payload)
		session := n.prepare(preparing(op, "/rdm/"+key, len(payload)))
		said := [][]byte{readying(session, 0).bytes(), readying(session, 0).bytes(), cancelling(session).bytes()}
		got := make([]answer, len(said))
		var wg sync.WaitGroup
		for j := range said {
			wg.Go(func() { got[j] = n.say(said[(j+i)%len(said)]) })
		}
		wg.Wait()
		finals, cancels := 0, 0
		for _, a := range got {
			switch a.status {
			case 200:
				finals++
			case 204:
				cancels++
			case 409, 500:
			default:
				t.Errorf("%s: %d %s", op, a.status, a.body)
			}
		}
		if finals > 1 || cancels != 1 || x.open() != 0 {
			t.Fatalf("%s: %d finals, %d cancels, %d sessions", op, finals, cancels, x.open())
		}
		moved := bytes.Equal(n.fabric.memory[:len(payload)], p[:len(payload)])
		if op == "PUT" {
			back := n.send(request{method: "GET", path: "/rdm/" + key})
			moved = back.status == 200
			if moved && !bytes.Equal(back.body, payload) {
				t.Error("other bytes are stored")
			}
			if moved != (finals == 1) {
				t.Errorf("PUT: %d finals, stored: %v", finals, moved)
			}
		} else if finals == 1 && !moved { // without one, the memory may have anything
			t.Error("GET: a FINAL, and other bytes")
		}
	}
}
