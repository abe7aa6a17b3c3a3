package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clockTicks is USER_HZ, which is 100 on every Linux architecture that Go runs on.
const clockTicks = 100

// ProcessCPU is the CPU time of a process so far in seconds, from /proc/<pid>/stat.
func ProcessCPU(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("bench: cpu of process %d: %w", pid, err)
	}
	return parseStat(string(text))
}

// parseStat adds utime and stime. The command's name, in parentheses, may hold anything.
func parseStat(text string) (float64, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const utime, stime = 11, 12 // counted from the field after the name
	if len(fields) <= stime {
		return 0, fmt.Errorf("bench: stat line with %d fields", len(fields))
	}
	u, err1 := strconv.ParseUint(fields[utime], 10, 64)
	s, err2 := strconv.ParseUint(fields[stime], 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("bench: stat line without times")
	}
	return float64(u+s) / clockTicks, nil
}

// PrivateMemory is VmRSS − RssShmem of a process in bytes: what it holds beside memory shared with
// clients.
func PrivateMemory(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("bench: memory of process %d: %w", pid, err)
	}
	defer f.Close()
	values := map[string]int64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		name, rest, _ := strings.Cut(s.Text(), ":")
		if name != "VmRSS" && name != "RssShmem" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("bench: memory of process %d: %w", pid, err)
		}
		values[name] = kib << 10
	}
	return values["VmRSS"] - values["RssShmem"], nil
}

// watchMemory samples PrivateMemory until stop is called, which returns the peak.
func watchMemory(pid int) (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	peak := make(chan int64, 1)
	go func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		var most int64
		for {
			if n, err := PrivateMemory(pid); err == nil {
				most = max(most, n)
			}
			select {
			case <-ctx.Done():
				peak <- most
				return
			case <-ticker.C:
			}
		}
	}()
	return func() int64 {
		cancel()
		return <-peak
	}
}

// Machine describes where numbers come from.
type Machine struct {
	CPU         string `json:"cpu"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
	Arch        string `json:"arch"`
	FileSystem  string `json:"file_system"` // of the node's data
	Go          string `json:"go"`
}

// DescribeMachine looks at this machine and the file system of dir.
func DescribeMachine(dir string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(), FileSystem: fileSystem(dir)}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.SplitSeq(string(text), "\n") {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	}
	return m
}

// fileSystem is the type of the mount that holds dir, from /proc/self/mounts.
func fileSystem(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return ""
	}
	best, kind := "", ""
	for line := range strings.SplitSeq(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < len(best) {
			continue
		}
		if dir == f[1] || f[1] == "/" || strings.HasPrefix(dir, f[1]+"/") {
			best, kind = f[1], f[2]
		}
	}
	return kind
}

// Commit is the commit of the working tree in the current directory, empty outside of one.
func Commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=40").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
