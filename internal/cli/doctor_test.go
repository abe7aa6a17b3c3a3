package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-store/penstock/internal/rail"
	"github.com/penstock-store/penstock/native"
)

// fakeMachine answers the doctor.
type fakeMachine struct {
	files  map[string]string
	globs  map[string][]string
	limit  uint64
	denied error
}

func (f fakeMachine) Read(path string) (string, error) {
	if text, ok := f.files[path]; ok {
		return text, nil
	}
	return "", fs.ErrNotExist
}
func (f fakeMachine) Glob(pattern string) []string { return slices.Clone(f.globs[pattern]) }
func (f fakeMachine) Memlock() (uint64, error)     { return f.limit, nil }
func (f fakeMachine) Writable(string) error        { return f.denied }

var _ rail.Machine = fakeMachine{}

func TestDoctorSaysWhyNot(t *testing.T) {
	state := func(m rail.Machine) map[string]string {
		out := map[string]string{}
		for _, c := range machineChecks(m) {
			out[c.Name] = c.Status
		}
		return out
	}
	bare := state(fakeMachine{limit: 8 << 20})
	full := state(fakeMachine{
		limit: 1 << 40,
		files: map[string]string{
			"/proc/sys/kernel/osrelease":                             "6.1",
			"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "16",
			"/sys/kernel/mm/transparent_hugepage/enabled":            "always madvise [never]",
		},
		globs: map[string][]string{
			"/sys/kernel/mm/hugepages/hugepages-*": {"/sys/kernel/mm/hugepages/hugepages-2048kB"},
			"/sys/class/infiniband/*":              {"/sys/class/infiniband/rxe0"},
			"/dev/infiniband/uverbs*":              {"/dev/infiniband/uverbs0"},
		},
	})
	for _, name := range []string{"memlock", "huge pages", "verbs devices", "verbs access"} {
		if bare[name] != "no" || full[name] != "ok" {
			t.Errorf("%s: bare %q, full %q", name, bare[name], full[name])
		}
	}
	if bare["kernel"] != "unknown" || full["kernel"] != "ok" || full["shm"] != "ok" {
		t.Errorf("bare %v, full %v", bare, full)
	}
}

// TestDoctorSaysWhetherRCIsPossible compares with what the library itself says on the machine of the test.
func TestDoctorSaysWhetherRCIsPossible(t *testing.T) {
	library, err := native.Open(native.Options{})
	want := "no"
	if err == nil {
		defer library.Close()
		rails, _, err := rail.Discover(library, rail.Options{})
		if err == nil && slices.ContainsFunc(rails, func(r rail.Rail) bool { return r.Up }) {
			want = "ok"
		}
	}
	o := must(t, "doctor", "--json")
	for line := range strings.Lines(o.stdout) {
		var c check
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if c.Name == "rc" && c.Status != want {
			t.Errorf("%+v, want %s", c, want)
		}
	}
	if !strings.Contains(o.stdout, `"name":"rc"`) {
		t.Errorf("no line for rc: %s", o.stdout)
	}
}

// examine runs `doctor rdma` as Main does, on a machine and a library of the test's.
func examine(t *testing.T, d rdmaDoctor, asJSON bool) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	d.app = &app{env: Environment{Stdout: &stdout, Stderr: &stderr}, json: asJSON}
	if d.size == 0 {
		d.size = rail.DefaultLoopbackSize
	}
	err := d.run(t.Context())
	var silent silentError
	if err != nil && !errors.As(err, &silent) {
		stderr.WriteString(err.Error())
	}
	return outcome{stdout: stdout.String(), stderr: stderr.String(), code: exitCode(err)}
}

// lines decodes each line of JSON and indexes the lines by their type and name.
func lines(t *testing.T, o outcome) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for line := range strings.Lines(o.stdout) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		name, _ := m["name"].(string)
		out[strings.TrimSpace(m["type"].(string)+" "+name)] = m
	}
	return out
}

// TestDoctorRDMAWithoutVerbs: each reason for which the library is missing ends with exit code 1, the reason and a
// remedy, in both forms.
func TestDoctorRDMAWithoutVerbs(t *testing.T) {
	for _, reason := range []string{native.ReasonNoCgo, native.ReasonNoHeaders, native.ReasonNoLibrary,
		native.ReasonNoSymbol} {
		d := rdmaDoctor{
			machine: fakeMachine{limit: 8 << 20}, need: 416 << 20,
			open: func() (*native.Library, error) { return nil, &native.UnavailableError{Reason: reason} },
		}
		o := examine(t, d, false)
		if o.code != ExitFailure || !strings.Contains(o.stdout, reason+": ") || !strings.Contains(o.stdout, "rdma off") ||
			strings.Count(o.stdout, "→ ") != 4 || o.stderr != "" {
			t.Errorf("%s: %+v", reason, o)
		}
		o = examine(t, d, true)
		got := lines(t, o)
		if len(got) != 5 || got["result"]["status"] != "no" || got["check libibverbs"]["status"] != "no" ||
			got["check libibverbs"]["remedy"] == "" || got["check memlock"]["status"] != "no" || o.code != ExitFailure {
			t.Errorf("%s: %+v", reason, o)
		}
	}
}

func TestDoctorRDMAChecksItsFlags(t *testing.T) {
	for _, args := range [][]string{
		{"--size", "0"}, {"--size", "65MiB"}, {"--size", "x"}, {"--size", "-1"}, {"more"}, {"--nothing"},
	} {
		if o := penstock(t, "", append([]string{"doctor", "rdma"}, args...)...); o.code != ExitUsage || o.stdout != "" {
			t.Errorf("%v: %+v", args, o)
		}
	}
	if o := penstock(t, "", "doctor", "rdma", "--help"); o.code != ExitOK || !strings.Contains(o.stdout, "Exit codes:") {
		t.Errorf("help: %+v", o)
	}
	if o := penstock(t, "", "doctor", "more"); o.code != ExitUsage {
		t.Errorf("doctor more: %+v", o)
	}
}

// TestDoctorRDMAHere runs it on the machine of the test: whatever that has, the exit code and the last line agree.
func TestDoctorRDMAHere(t *testing.T) {
	o := penstock(t, "", "doctor", "rdma", "--json")
	result := lines(t, o)["result"]
	if result == nil || (result["status"] == "ok") != (o.code == ExitOK) || result["detail"] == "" {
		t.Errorf("%+v", o)
	}
}
