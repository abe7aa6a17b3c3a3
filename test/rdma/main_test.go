package rdma

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/native"
)

// Variables of the environment; the package's documentation says what they mean.
const (
	fabricVariable  = "PENSTOCK_TEST_FABRIC"
	binaryVariable  = "PENSTOCK_TEST_BINARY"
	flagsVariable   = "PENSTOCK_TEST_FLAGS"
	verbsVariable   = "PENSTOCK_TEST_VERBS"
	slowVariable    = "PENSTOCK_TEST_SLOW"
	linkVariable    = "PENSTOCK_TEST_LINK"
	recordVariable  = "PENSTOCK_TEST_RECORD"
	longVariable    = "PENSTOCK_TEST_LONG"
	boundsVariable  = "PENSTOCK_TEST_BOUNDS"
	clientsVariable = "PENSTOCK_TEST_CLIENTS"
	// jobVariable makes the test binary a client process.
	jobVariable = "PENSTOCK_TEST_JOB"
)

const rc = "rc"

func TestMain(m *testing.M) {
	if text := os.Getenv(jobVariable); text != "" {
		if err := work(text); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "client process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func long() bool { return os.Getenv(longVariable) != "" }

// must tells whether everything has to be supported.
func must() bool { return os.Getenv(verbsVariable) == "device" }

// asked is the fabrics that the environment names.
func asked() string {
	if names := os.Getenv(fabricVariable); names != "" || !must() {
		return names
	}
	return rc
}

// given tells whether a fabric was asked for: then the suite runs in full.
func given() bool { return asked() != "" }

// bounded tells whether rates are held against their bounds, which takes a machine that does nothing else.
func bounded() bool { return os.Getenv(boundsVariable) != "" }

// slow stretches a time on emulated machines.
func slow(d time.Duration) time.Duration {
	if factor, err := strconv.ParseFloat(os.Getenv(slowVariable), 64); err == nil && factor > 0 {
		return time.Duration(float64(d) * factor)
	}
	return d
}

// patience bounds every wait for something that must come.
func patience() time.Duration { return slow(20 * time.Second) }

// unsupported skips, or fails where the environment says that everything must be there.
func unsupported(t *testing.T, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	if must() {
		t.Fatalf("not supported, and it must be: %s", text)
	}
	t.Skip(text)
}

// each runs the case on every fabric that the environment names, or on some that every machine has.
func each(t *testing.T, otherwise string, run func(t *testing.T, fabric string)) {
	t.Helper()
	names := asked()
	if names == "" {
		names = otherwise
		if testing.Short() {
			t.Skip("runs many processes; fabrictest and test/e2e have the cases in one")
		}
	}
	for name := range strings.SplitSeq(names, ",") {
		t.Run(name, func(t *testing.T) {
			if name == rc {
				needVerbs(t)
			}
			run(t, name)
		})
	}
}

// needVerbs skips where this process cannot use verbs.
func needVerbs(t *testing.T) {
	t.Helper()
	l, err := native.Open(native.Options{})
	if errors.Is(err, native.ErrNotSupported) {
		unsupported(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// onVerbs is for cases that only rc has.
func onVerbs(t *testing.T) {
	t.Helper()
	if !strings.Contains(asked(), rc) {
		t.Skip("needs the rc fabric")
	}
	needVerbs(t)
}

// eventually polls.
func eventually(ok func() bool) bool {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(patience()); time.Now().Before(end); <-ticker.C {
		if ok() {
			return true
		}
	}
	return ok()
}

// during checks that something holds for a while: a late write needs time to come.
func during(d time.Duration, ok func() bool) bool {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-ticker.C {
		if !ok() {
			return false
		}
	}
	return ok()
}
