package lane

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutant is a Core that is broken in one place, and what the model must say of it.
type mutant struct {
	name, old, new string
	want           string
}

var mutants = []mutant{
	{"expire does not reset", "		if now && l.state == busy &&", "		if false && l.state == busy &&",
		"after its deadline"},
	{"stop is not heard", "		m.stopped = true\n", "", "after its stop"},
	{"no linger", "	c.emit(Action{Kind: Release, Transfer: m.ID})\n	m.state, m.lane",
		"	c.end(m, r)\n	return\n	m.state, m.lane", "packets in the network"},
	{"remote address is off by one", "	c.free -= n\n	l.posting = true",
		"	works[n-1].Remote++\n	c.free -= n\n	l.posting = true", "outside its window"},
	{"a piece crosses its segment", "	n := min(t.Segments[t.seg]-t.off, piece)", "	n := piece", "outside its segments"},
	{"the lane is free before its reset", "	l.state = resetting\n", "	l.state = resetting\n	c.idle = append(c.idle, at)\n",
		"DCI"},
	{"the lane is free at its last post", "	c.emit(Action{Kind: Post, Lane: at, Transfer: l.owner.ID, Works: works})",
		"	c.emit(Action{Kind: Post, Lane: at, Transfer: l.owner.ID, Works: works})\n	if l.owner.pieces == 0 {\n" +
			"		l.state = idle\n		c.idle = append(c.idle, at)\n	}", "used by two transfers"},
	{"buffers are free before the reset", "	l.owner.result = r\n",
		"	l.owner.result = r\n	c.emit(Action{Kind: Release, Transfer: l.owner.ID})\n", "freed early"},
	{"buffers are free though the reset failed", "	if fenced {\n		c.fenced(at)", "	{\n		c.fenced(at)", "freed early"},
	{"a flush is a success", "	case s != StatusOK:", "	case s != StatusOK && s != StatusFlushed:", ""},
	{"a short READ is a success", "	case e.read && n != e.length, c.disordered(l, count):",
		"	case c.disordered(l, count):", "not moved its bytes"},
	{"completions in any order", "	case e.read && n != e.length, c.disordered(l, count):",
		"	case e.read && n != e.length:", ""},
	{"numbers begin again", "	l.head = l.tail\n", "	l.head, l.tail = 0, 0\n", "DCI"},
	{"peers have no limit", "c.peers[m.Peer] >= c.o.PerPeer", "false", "DCIs of one peer"},
	{"owners have no limit", "c.owners[m.Owner] >= c.o.PerOwner", "false", "DCIs of one owner"},
	{"an owner's lanes are not counted down", "	less(c.owners, m.Owner)\n", "", "waits beside"},
	{"moves wait for no lane", "	if !c.Serves() {\n		c.dismiss()\n		return\n	}\n", "", "wait, and there is no DCI"},
	{"a lane that is late counts", "		c.late++\n", "", ""},
	{"a lane that was late never counts again", "		c.late--\n", "", ""},
	{"a lane whose DCI is destroyed serves", "		if usable {", "		if true {", "which is being reset"},
	{"a DCI made anew is forgotten", "	if c.lanes[at].state == gone {", "	if false {", "at the end"},
	{"a DCI made anew is counted as gone", "	c.finished--\n", "", ""},
	{"the end does not wait for the post", "	if l.state != busy || l.posting {\n		return\n	}\n	m := l.owner",
		"	if l.state != busy {\n		return\n	}\n	m := l.owner", "a post of DCI"},
	{"a reset does not wait for the post", "	if !l.posting {\n		c.emit(Action{Kind: Reset, Lane: at})",
		"	{\n		c.emit(Action{Kind: Reset, Lane: at})", "while a post is under way"},
	{"no proof", "	return pieces + 1\n", "	return pieces\n", ""},
	{"credits come back twice", "		c.give(freed)\n", "		c.give(freed + 1)\n", "completion queue"},
	{"the depth is not kept", "	if c.o.Depth-l.flight() < want {", "	if false {", "work requests of"},
	{"a lost transfer ends well", "	c.part(l, l.owner.result)", "	c.part(l, OK)", ""},
}

// TestMutants breaks the Core in one place after another: the model must find each, and say what is wrong.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package for each mutant")
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) { m.try(t) })
	}
}

func (m *mutant) try(t *testing.T) {
	overlay := map[string]string{}
	for _, file := range []string{"core.go", "lane.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.old); n == 0 {
			continue
		} else if n > 1 {
			t.Fatalf("%s has it %d times", file, n)
		}
		path, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		broken := filepath.Join(t.TempDir(), file)
		if err := os.WriteFile(broken, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[path] = broken
	}
	if len(overlay) != 1 {
		t.Fatalf("found in %d files", len(overlay))
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "test", "-overlay", file, "-vet=off", "-count=1", "-timeout=60s", "-run",
		"^TestSchedules$", ".").CombinedOutput()
	switch {
	case err == nil:
		t.Error("the model found nothing")
	case strings.Contains(string(out), "[build failed]"):
		t.Errorf("not built:\n%s", out)
	case !strings.Contains(string(out), m.want):
		t.Errorf("the model does not say %q:\n%.600s", m.want, out)
	default:
		t.Logf("%.200s", out)
	}
}
