package shim_test

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hole is a port of this machine that swallows every attempt to connect: its queue is full.
func hole(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := name.(*unix.SockaddrInet4).Port
	for range 100 {
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 300*time.Millisecond)
		if err != nil {
			return port
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Skip("the kernel's queue does not fill")
	return 0
}

// TestConnectDeadlines: an address that swallows packets leaves time for the next one, and a name server that does not
// answer holds up nobody beyond his deadline; lookups do not pile up.
func TestConnectDeadlines(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	good, bad := l.Addr().(*net.TCPAddr).Port, hole(t)
	const most = 2000 // milliseconds of each
	cases := []struct {
		name  string
		ports [2]int
		want  string
		least int64
	}{
		{"two", [2]int{bad, good}, "connected", most / 4},
		{"two", [2]int{good, bad}, "connected", 0},
		{"two", [2]int{bad, bad}, "refused", most / 2},
		{"nobody", [2]int{good, good}, "refused", 0},
		{"silent", [2]int{good, good}, "refused", most / 4},
		{"silent", [2]int{good, good}, "refused", most / 4},
		{"silent", [2]int{good, good}, "refused", most / 4},
		{"silent", [2]int{good, good}, "refused", most / 4},
		{"silent", [2]int{good, good}, "refused", 0}, // as many threads hang already as may
		{"two", [2]int{good, good}, "refused", 0},
	}
	var questions strings.Builder
	for _, c := range cases {
		fmt.Fprintln(&questions, c.name, c.ports[0], c.ports[1], most)
	}
	cmd := exec.Command(program(t, "names", "address,undefined"))
	cmd.Stdin = strings.NewReader(questions.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(cases) {
		t.Fatalf("%q", out)
	}
	for i, c := range cases {
		var got string
		var took int64
		if _, err := fmt.Sscan(lines[i], &got, &took); err != nil {
			t.Fatal(err)
		}
		if got != c.want || took < c.least || took > most+1000 {
			t.Errorf("%s %v: %s, want %s", c.name, c.ports, lines[i], c.want)
		}
	}
}
