package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// Report is the record of a run.
type Report struct {
	Version      int           `json:"version"` // 1
	Profile      string        `json:"profile"`
	Started      time.Time     `json:"started"`
	Commit       string        `json:"commit,omitempty"`
	Command      []string      `json:"command"`
	Machine      Machine       `json:"machine"`
	Rounds       int           `json:"rounds"`
	Measurements []Measurement `json:"measurements"`
	Bounds       []Bound       `json:"bounds,omitempty"`
	OK           bool          `json:"ok"` // every bound holds
}

// NewReport describes a run that starts now, on the file system of dir.
func NewReport(ctx context.Context, profile, dir string, rounds int) Report {
	return Report{
		Version: 1, Profile: profile, Started: time.Now().UTC().Truncate(time.Second), Commit: Commit(ctx),
		Command: append([]string{"penstock"}, os.Args[1:]...), Machine: DescribeMachine(dir), Rounds: rounds, OK: true,
	}
}

// Judge sets the bounds.
func (r *Report) Judge(bounds []Bound) {
	r.Bounds = bounds
	for _, b := range bounds {
		r.OK = r.OK && b.Pass
	}
}

// Record writes the report as a new file in dir and returns its name. Where the run kept its files is
// left out: the file system they were on is part of the machine.
func (r Report) Record(dir string) (string, error) {
	r.Measurements = slices.Clone(r.Measurements)
	for i := range r.Measurements {
		r.Measurements[i].Task.Dir = ""
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("bench: record: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", fmt.Errorf("bench: record: %w", err)
	}
	commit := "none"
	if len(r.Commit) >= 12 {
		commit = r.Commit[:12]
	}
	name := filepath.Join(dir, fmt.Sprintf("%s-%s-%s.json", r.Started.Format("20060102T150405Z"), r.Profile, commit))
	if err := os.WriteFile(name, append(text, '\n'), 0o644); err != nil {
		return "", fmt.Errorf("bench: record: %w", err)
	}
	return name, nil
}

// WriteTable prints the measurements and bounds for people.
func (r Report) WriteTable(w io.Writer) error {
	m := r.Machine
	fmt.Fprintf(w, "%s, %d cores, %.0f GiB, Linux %s, %s; commit %s; median of %d\n\n", m.CPU, m.Cores,
		float64(m.MemoryBytes)/gib, m.Kernel, m.FileSystem, r.Commit, r.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "measurement\tprocs\tin flight\tGB/s\top/s\tserver CPU-s/GB\tclient CPU-s/GB\tp50 ms\tp99 ms\t")
	for _, x := range r.Measurements {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.2f\t%.0f\t%.3f\t%.3f\t%.2f\t%.2f\t\n", x.Task.Name, x.Task.Processes,
			x.Task.InFlight*x.Task.Processes, x.GBps, x.OpsPerSecond, x.ServerCPUPerGB, x.ClientCPUPerGB,
			x.P50Millis, x.P99Millis)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(r.Bounds) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "bound\tdemand\tfigure\t\t\t")
	for _, b := range r.Bounds {
		verdict := "pass"
		if !b.Pass {
			verdict = "MISSED"
		}
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%s\t%s\t\n", b.Name, b.Demand, b.Figure, b.Unit, verdict)
	}
	return t.Flush()
}
