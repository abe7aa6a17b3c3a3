package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-store/penstock/internal/fabric"
)

// nobody is a user without capabilities.
const nobody = 65534

// NeedForeign skips a test that needs a process which may take foreign memory.
func NeedForeign(t *testing.T) {
	t.Helper()
	if err := foreignSupported(); errors.Is(err, fabric.ErrNotSupported) {
		t.Skip(err)
	}
}

func foreignSupported() error {
	if reason := foreignReason(); reason != "" {
		return fmt.Errorf("foreign memory: %s: %w", reason, fabric.ErrNotSupported)
	}
	return nil
}

// TestAsUser runs the TestForeign tests in a process of a user without capabilities: the check of the
// capability is the real one, both here and there.
func TestAsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: the tests run by themselves")
	}
	if err := foreignSupported(); err == nil {
		t.Fatal("root takes foreign memory")
	}
	run := userCommand(t, nobody, "-test.v", "-test.run=^TestForeign")
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("as user %d: %v\n%s", nobody, err, out)
	}
	passed := strings.Count("\n"+string(out), "\n--- PASS: TestForeign") // of whole tests
	if passed != foreignTests || strings.Contains("\n"+string(out), "\n--- SKIP: TestForeign") {
		t.Errorf("as user %d: %d tests passed, or some were skipped\n%s", nobody, passed, out)
	}
}

// foreignTests is the number of TestForeign tests.
const foreignTests = 12

// userCommand runs this test binary as another user, which cannot reach its directory.
func userCommand(t *testing.T, uid uint32, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, int(uid), int(uid))); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "shm.test")
	if err := copyFile(binary, self); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), binary, args...)
	run.Dir = dir
	run.Env = append(os.Environ(), "TMPDIR="+dir)
	run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return run
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
