package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPublishedFiguresAreTheRecords: the figures of README.md and docs/performance.md are those of the run that the
// latter names, rounded. The oracle is its record.
func TestPublishedFiguresAreTheRecords(t *testing.T) {
	performance, readme := document(t, "../docs/performance.md"), document(t, "../README.md")
	name := regexp.MustCompile("`bench/(results/[^`]+\\.json)`").FindStringSubmatch(performance)
	if name == nil {
		t.Fatal("docs/performance.md names no record")
	}
	var r Report
	if err := json.Unmarshal([]byte(document(t, name[1])), &r); err != nil {
		t.Fatal(err)
	}
	at := map[string]Measurement{}
	for _, m := range r.Measurements {
		at[m.Task.Name] = m
	}
	rate := func(task string) string {
		m, ok := at[task]
		if !ok {
			t.Errorf("%s has no measurement %q", name[1], task)
		}
		return short(m.GBps)
	}
	row := func(path string) string {
		get, put := "64 MiB get "+path, "64 MiB put "+path
		getCPU, putCPU := at[get].ServerCPUPerGB, at[put].ServerCPUPerGB
		return fmt.Sprintf("| %s | %.2f | %s | %.2f | ", rate(get), getCPU, rate(put), putCPU)
	}
	for _, want := range []string{
		"at commit " + r.Commit[:7],
		"| shm " + row("shm") + rate(nameReadFloor) + " for pread", rate(nameWriteFloor) + " for O_DIRECT",
		"| tcp " + row("tcp") + rate(nameTCPFloor) + " for a loopback",
		"| HTTP " + row("http") + rate(nameTCPFloor) + " · " + rate(nameMD5Floor) + " for MD5",
		hundreds(at["4 KiB get http"].OpsPerSecond) + " GET/s and " +
			hundreds(at["4 KiB put http"].OpsPerSecond) + " durable PUT/s",
	} {
		if !strings.Contains(strings.Join(strings.Fields(readme), " "), want) {
			t.Errorf("README.md does not say %q", want)
		}
	}
	_, table, _ := strings.Cut(performance, "| bound | figure of the recorded run | demanded |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if len(rows) != len(r.Bounds) {
		t.Fatalf("docs/performance.md has %d bounds, the record %d", len(rows), len(r.Bounds))
	}
	for i, b := range r.Bounds {
		f := b.Figure
		if words := strings.Fields(rows[i]); !slices.ContainsFunc(
			[]string{fmt.Sprintf("%.2f", f), fmt.Sprintf("%.1f", f), thousands(int64(math.Round(f)))},
			func(s string) bool { return slices.Contains(words, s) },
		) {
			t.Errorf("docs/performance.md: %s: the record has %.3f", rows[i], f)
		}
	}
}

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// short is a rate with two significant digits or more.
func short(gbps float64) string {
	if gbps < 1 {
		return fmt.Sprintf("%.2f", gbps)
	}
	return fmt.Sprintf("%.1f", gbps)
}

func hundreds(v float64) string { return thousands(int64(math.Round(v/100) * 100)) }

func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	if len(s) > 3 {
		return s[:len(s)-3] + "," + s[len(s)-3:]
	}
	return s
}
