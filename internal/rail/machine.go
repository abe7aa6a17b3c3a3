package rail

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is where checks look; tests have others than Host.
type Machine interface {
	Read(path string) (string, error) // the file's text without white space around it
	Glob(pattern string) []string
	Writable(path string) error // whether this process may read and write the file
	Memlock() (uint64, error)   // bytes that this process may lock: its soft limit
}

// Host is the machine that the process runs on.
func Host() Machine { return host{} }

type host struct{}

func (host) Read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

func (host) Glob(pattern string) []string {
	names, _ := filepath.Glob(pattern) // fails for bad patterns only
	return names
}

func (host) Writable(path string) error { return unix.Access(path, unix.R_OK|unix.W_OK) }

func (host) Memlock() (uint64, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l)
	return l.Cur, err
}
