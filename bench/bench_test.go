package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-store/penstock/client"
)

func TestMain(m *testing.M) {
	// A test binary started as a worker serves as one, as penstock does.
	if len(os.Args) > 2 && os.Args[1] == "bench" && os.Args[2] == "worker" {
		if err := Work(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func TestMedianAndPercentile(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{5, 1, 9}, 5}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := Median(tt.values); got != tt.want {
			t.Errorf("median of %v is %v, want %v", tt.values, got, tt.want)
		}
	}
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for p, want := range map[float64]float64{0.5: 50, 0.99: 99, 1: 100, 0.001: 1} {
		if got := percentile(hundred, p); got != want {
			t.Errorf("p%v is %v, want %v", p, got, want)
		}
	}
}

func TestParseStat(t *testing.T) {
	const line = "42 (a ) b) S 1 42 42 0 -1 4194560 100 0 0 0 250 75 9 9 20 0 1 0 100 0 0"
	if got, err := parseStat(line); err != nil || got != 3.25 {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"", "42 (x) S 1", strings.Replace(line, "250", "x", 1)} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if cpu, err := ProcessCPU(os.Getpid()); err != nil || cpu < 0 {
		t.Errorf("own cpu: %v %v", cpu, err)
	}
	if n, err := PrivateMemory(os.Getpid()); err != nil || n <= 0 {
		t.Errorf("own memory: %v %v", n, err)
	}
}

func TestParseCounters(t *testing.T) {
	const page = `# HELP x_total text
x_total{op="get",path="shm"} 12
x_total{op="put",path="a b"} 3e9
x_total_other 7
x_total 1
`
	got, err := parseCounters(strings.NewReader(page), "x_total")
	if err != nil || len(got) != 3 || got[`op="get",path="shm"`] != 12 || got[`op="put",path="a b"`] != 3e9 ||
		got[""] != 1 {
		t.Errorf("%v %v", got, err)
	}
}

// The floors move what they say and touch memory as they say; figures are not judged here.
func TestFloorsMoveTheirBytes(t *testing.T) {
	dir := t.TempDir()
	for _, task := range []Task{
		{Name: "r", Kind: FloorRead, ObjectBytes: 1<<20 + 100, Objects: 2, InFlight: 2, Ops: 4, Dir: dir},
		{Name: "w", Kind: FloorWrite, ObjectBytes: 8 << 20, InFlight: 2, Ops: 3, Dir: dir},
		{Name: "t", Kind: FloorTCP, ObjectBytes: 3<<20 + 1, Objects: 3, InFlight: 2, Ops: 4},
		{Name: "m", Kind: FloorMD5, ObjectBytes: 1 << 20, InFlight: 1, Ops: 2},
	} {
		w := &worker{}
		run, err := w.prepare(t.Context(), task)
		if err != nil {
			t.Fatalf("%s: %v", task.Kind, err)
		}
		s, err := measure(t.Context(), task, run.op)
		run.close()
		if err != nil || s.Ops != int64(task.Ops) || s.Bytes != int64(task.Ops)*task.ObjectBytes || s.Seconds <= 0 {
			t.Errorf("%s: %+v %v", task.Kind, s, err)
		}
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 0 {
		t.Errorf("files left: %v", left)
	}
}

// The write floor's bytes are on the disk: the file is read before it is removed.
func TestWriteFloorWrites(t *testing.T) {
	dir := t.TempDir()
	task := Task{Name: "w", Kind: FloorWrite, ObjectBytes: 4 << 20, InFlight: 1, Ops: 2, Dir: dir}
	run, err := prepareWrite(task)
	if err != nil {
		t.Fatal(err)
	}
	defer run.close()
	for i := range 2 {
		if _, err := run.op(t.Context(), 0, i); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "floor-write"))
	want := make([]byte, 4<<20)
	fill(want)
	if err != nil || !bytes.Equal(got[:4<<20], want) || !bytes.Equal(got[4<<20:], want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestMeasureStopsAtAnError(t *testing.T) {
	broken := errors.New("broken")
	_, err := measure(t.Context(), Task{InFlight: 3, Ops: 1000}, func(_ context.Context, _, i int) (int64, error) {
		if i == 7 {
			return 0, broken
		}
		return 1, nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func TestTasksAreChecked(t *testing.T) {
	for _, task := range []Task{
		{Kind: FloorMD5}, {Kind: FloorMD5, ObjectBytes: 1, InFlight: 1}, {Kind: "x", ObjectBytes: 1, InFlight: 1, Ops: 1},
		{Kind: FloorWrite, ObjectBytes: 1, InFlight: 1, Ops: 1},
	} {
		if _, err := (&worker{}).prepare(t.Context(), task); err == nil {
			t.Errorf("%+v is taken", task)
		}
	}
}

// Workers are processes: two of them run one task, their samples are added up, errors come back.
func TestRunInProcesses(t *testing.T) {
	task := Task{Name: "md5", Kind: FloorMD5, ObjectBytes: 1 << 20, InFlight: 1, Ops: 5, Processes: 2}
	list, err := Run(t.Context(), []Task{task}, Options{Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	m := list[0]
	if len(m.Samples) != 2 || m.Samples[0].Ops != 10 || m.Samples[0].Bytes != 10<<20 || m.GBps <= 0 ||
		m.P99Millis < m.P50Millis {
		t.Errorf("%+v", m)
	}
	task.Kind = "nonsense"
	if _, err := Run(t.Context(), []Task{task}, Options{Rounds: 1}); err == nil {
		t.Error("a worker's error is lost")
	}
	task.Processes = 17
	if _, err := Run(t.Context(), []Task{task}, Options{Rounds: 1}); err == nil {
		t.Error("17 processes")
	}
}

func TestWorkerSpeaksLines(t *testing.T) {
	var out bytes.Buffer
	in := `{"task":{"kind":"floor-md5","object_bytes":1024,"in_flight":1,"ops":2}}
{"go":true}
{"task":{"kind":"nonsense","object_bytes":1024,"in_flight":1,"ops":2}}
`
	if err := Work(t.Context(), strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	var got []reply
	for dec := json.NewDecoder(&out); ; {
		var r reply
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	if len(got) != 3 || !got[0].Ready || got[1].Sample == nil || got[1].Sample.Ops != 2 || got[2].Error == "" {
		t.Errorf("%+v", got)
	}
}

// gateRun makes a run in which every bound holds with little to spare.
func gateRun() []Measurement {
	rates := map[string]float64{
		nameReadFloor: 10, "64 MiB get shm": 7.1, nameTCPFloor: 3, "64 MiB get http": 2, "64 MiB get tcp": 2.1,
		nameWriteFloor: 2, "64 MiB put shm": 1.5, nameMD5Floor: 0.6, "64 MiB put http": 0.5,
		"64 MiB get shm, 2 processes": 8, "64 MiB get shm, 8 processes": 7.5,
	}
	var list []Measurement
	for _, task := range GateTasks("b", "d") {
		m := Measurement{Task: task, GBps: rates[task.Name]}
		switch task.Name {
		case nameReadFloor:
			m.ClientCPUPerGB = 0.1
		case "64 MiB get shm":
			m.ServerCPUPerGB = 0.125
		case "4 KiB get http":
			m.OpsPerSecond = 8100
		case "4 KiB put http":
			m.OpsPerSecond = 5100
		}
		list = append(list, m)
	}
	return list
}

func TestGateBounds(t *testing.T) {
	for _, b := range GateBounds(gateRun(), gib/2) {
		if !b.Pass || b.Figure <= 0 || math.IsNaN(b.Figure) {
			t.Errorf("%+v", b)
		}
	}
	worse := map[string]func(*Measurement){
		"64 MiB get shm":              func(m *Measurement) { m.GBps, m.ServerCPUPerGB = 5.9, 0.2 },
		"64 MiB get http":             func(m *Measurement) { m.GBps = 1.9 },
		"64 MiB get tcp":              func(m *Measurement) { m.GBps = 1.8 },
		"64 MiB put shm":              func(m *Measurement) { m.GBps = 1.3 },
		"64 MiB put http":             func(m *Measurement) { m.GBps = 0.4 },
		"4 KiB get http":              func(m *Measurement) { m.OpsPerSecond = 7999 },
		"4 KiB put http":              func(m *Measurement) { m.OpsPerSecond = 4999 },
		"64 MiB get shm, 8 processes": func(m *Measurement) { m.GBps = 7.1 },
	}
	list := gateRun()
	for i := range list {
		if f := worse[list[i].Task.Name]; f != nil {
			f(&list[i])
		}
	}
	for _, b := range GateBounds(list, gib) {
		// shm stays more than 3 times HTTP in this run; every other bound is missed.
		if b.Pass != (b.Name == "shm GET against HTTP GET") {
			t.Errorf("%+v", b)
		}
	}
	var r Report
	r.OK = true
	r.Judge(GateBounds(list, gib))
	if r.OK {
		t.Error("a report with missed bounds is ok")
	}
	// No figure at all is no pass.
	for _, b := range GateBounds(nil, 0) {
		if b.Pass {
			t.Errorf("passes without figures: %+v", b)
		}
	}
}

func TestReportIsRecorded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	r := NewReport(t.Context(), "gate", ".", 5)
	r.Measurements = gateRun()
	r.Measurements[0].Task.Dir = "/somebody's/home"
	r.Judge(GateBounds(r.Measurements, gib/2))
	name, err := r.Record(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if bytes.Contains(text, []byte("somebody")) || r.Measurements[0].Task.Dir == "" {
		t.Error("the record names the directory of the run, or the run lost it")
	}
	if err := json.Unmarshal(text, &back); err != nil || !back.OK || len(back.Bounds) != len(r.Bounds) {
		t.Errorf("%v", err)
	}
	if m := back.Machine; m.Cores == 0 || m.Kernel == "" || m.FileSystem == "" || m.MemoryBytes == 0 {
		t.Errorf("machine %+v", m)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "pass") {
		t.Errorf("%v %s", err, table.String())
	}
}

func TestComparerSeesEveryDifference(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	data := make([]byte, 600<<10)
	fill(data)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := &comparer{f}
	if _, err := c.WriteAt(data[100:], 100); err != nil {
		t.Error(err)
	}
	for _, at := range []int{0, 256<<10 - 1, 256 << 10, len(data) - 1} {
		data[at] ^= 1
		if _, err := c.WriteAt(data, 0); !errors.Is(err, ErrDiffers) {
			t.Errorf("flip at %d: %v", at, err)
		}
		data[at] ^= 1
	}
	if _, err := c.WriteAt([]byte{1, 2}, int64(len(data))-1); !errors.Is(err, ErrDiffers) {
		t.Errorf("beyond the end: %v", err)
	}
}

// RF-20: a payload that took another path than the measured one fails the measurement.
func TestRF_20_OtherPathFailsTheMeasurement(t *testing.T) {
	task := Task{Name: "n", Path: "shm", ObjectBytes: 10}
	for _, r := range []client.Result{{Path: "http", Bytes: 10}, {Path: "tcp", Bytes: 10}, {Path: "shm", Bytes: 9}} {
		if task.onPath(r) == nil {
			t.Errorf("%+v counts as shm", r)
		}
	}
	if err := task.onPath(client.Result{Path: "shm", Bytes: 10}); err != nil {
		t.Error(err)
	}
}
