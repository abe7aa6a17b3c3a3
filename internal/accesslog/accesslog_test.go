package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// line is what a reader of the log sees; encoding/json is the oracle.
type line struct {
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id"`
	Key       string    `json:"key"`
	Bucket    string    `json:"bucket"`
	Agent     string    `json:"user_agent"`
	Referer   string    `json:"referer"`
	Status    int       `json:"status"`
	TotalUS   int64     `json:"total_us"`
}

func parse(t *testing.T, text []byte) []line {
	t.Helper()
	if len(text) > 0 && text[len(text)-1] != '\n' {
		t.Fatalf("the log ends in the middle of a line: %q", text[max(0, len(text)-100):])
	}
	var all []line
	for l := range bytes.Lines(text) {
		var one line
		if err := json.Unmarshal(l, &one); err != nil {
			t.Fatalf("%v: %q", err, l)
		}
		all = append(all, one)
	}
	return all
}

// wantAll checks that each id from 0 to n-1 is there exactly once.
func wantAll(t *testing.T, lines []line, n int) {
	t.Helper()
	seen := map[string]int{}
	for _, l := range lines {
		seen[l.RequestID]++
	}
	for i := range n {
		if got := seen[fmt.Sprint(i)]; got != 1 {
			t.Fatalf("line %d is there %d times", i, got)
		}
	}
	if len(lines) != n {
		t.Errorf("%d lines, want %d", len(lines), n)
	}
}

func close2(t *testing.T, l *Log) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
}

func sample(id int) *Entry {
	return &Entry{
		Time: time.Date(2026, 12, 1, 10, 0, 0, 123e6, time.UTC), RequestID: fmt.Sprint(id), Remote: "127.0.0.1:5000",
		Principal: "root", AccessKey: "PSROOT", Method: "GET", Operation: "GetObject", Bucket: "bucket", Key: "some/key",
		Status: 200, BytesOut: 4096, Payload: 4096, Path: "http", Total: 1500 * time.Microsecond,
		FirstByte: 900 * time.Microsecond, UserAgent: "aws-sdk-go-v2/1.39.0 lang/go",
	}
}

func TestLineOfAnEntry(t *testing.T) {
	want := `{"time":"2026-12-01T10:00:00.123Z","request_id":"7","remote":"127.0.0.1:5000","principal":"root",` +
		`"access_key":"PSROOT","method":"GET","operation":"GetObject","bucket":"bucket","key":"some/key","status":200,` +
		`"bytes_in":0,"bytes_out":4096,"payload_bytes":4096,"path":"http","total_us":1500,"first_byte_us":900,` +
		`"user_agent":"aws-sdk-go-v2/1.39.0 lang/go"}` + "\n"
	if got := string(sample(7).append(nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestEveryMemberIsDocumented: the table in docs/operations.md is the oracle for the names, both ways.
func TestEveryMemberIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "| member | meaning |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	name := regexp.MustCompile("`([a-z_]+)`")
	var want, got []string
	for row := range strings.Lines(table) {
		for _, m := range name.FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			want = append(want, m[1])
		}
	}
	full := &Entry{}
	for i, v := 0, reflect.ValueOf(full).Elem(); i < v.NumField(); i++ {
		if f := v.Field(i); f.Kind() == reflect.String {
			f.SetString("x")
		}
	}
	for _, m := range regexp.MustCompile(`"([a-z_]+)":`).FindAllSubmatch(full.append(nil), -1) {
		got = append(got, string(m[1]))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("a line has    %q\nthe table has %q", got, want)
	}
}

var hostileTexts = []string{
	`"},{"status":200`, "a\nb\r\tc", "\x00\x01\x1f\x7f", `back\slash`, "\xff\xfe\x80", "ünïcode 日本 😀",
	"\u2028\u2029\u202e\u009b31m", "\x1b[2J", "\U000e0001\U0010ffff", "half \xe6\x97", "\ufffd",
}

func TestHostileTextsStayInTheirMember(t *testing.T) {
	for _, s := range hostileTexts {
		checkHostile(t, s, s, s)
	}
}

func FuzzLine(f *testing.F) {
	for _, s := range hostileTexts {
		f.Add(s, s, s)
	}
	f.Add(strings.Repeat("日", 1000), strings.Repeat("\x80", 1000), strings.Repeat("😀", 1000))
	f.Fuzz(func(t *testing.T, key, agent, referer string) { checkHostile(t, key, agent, referer) })
}

func checkHostile(t *testing.T, key, agent, referer string) {
	t.Helper()
	e := sample(1)
	e.Key, e.UserAgent, e.Referer, e.Bucket = key, agent, referer, key
	text := e.append(nil)
	if bytes.Count(text, []byte{'\n'}) != 1 {
		t.Fatalf("more than one line: %q", text)
	}
	for _, r := range strings.TrimSuffix(string(text), "\n") {
		if !unicode.IsPrint(r) {
			t.Fatalf("%q has %U, which steers a terminal", text, r)
		}
	}
	got := parse(t, text)[0]
	for _, c := range []struct {
		name, got, sent string
		limit           int
	}{
		{"key", got.Key, key, maxKeyBytes}, {"user agent", got.Agent, agent, maxAgentBytes},
		{"referer", got.Referer, referer, maxRefererBytes}, {"bucket", got.Bucket, key, maxNameBytes},
	} {
		want := string([]rune(c.sent)) // each byte that is not UTF-8 becomes U+FFFD
		if len(c.sent) <= c.limit {
			if c.got != want {
				t.Fatalf("%s: got %q, want %q", c.name, c.got, want)
			}
			continue
		}
		cut, ok := strings.CutSuffix(c.got, "…")
		if !ok || !strings.HasPrefix(want, strings.TrimRight(cut, "\ufffd")) {
			t.Fatalf("%s: got %q of %q", c.name, c.got, c.sent)
		}
	}
	if got.Status != 200 || got.RequestID != "1" {
		t.Fatalf("another member changed: %+v", got)
	}
}

func TestConcurrentWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := Open(Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 16, 1000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				l.Record(sample(w*each + i))
			}
		})
	}
	wg.Wait()
	close2(t, l)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, parse(t, text), writers*each)
	if s := l.Stats(); s != (Stats{Lines: writers * each}) {
		t.Errorf("%+v", s)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&^0o640 != 0 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestRotationLosesNothing renames the file under load, as logrotate does, and reads all files together.
func TestRotationLosesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "access.log")
	l, err := Open(Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	const writers, each, rotations = 4, 2000, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				l.Record(sample(w*each + i))
			}
		})
	}
	for i := range rotations {
		if err := os.Rename(path, fmt.Sprintf("%s.%d", path, i)); err != nil {
			t.Fatal(err)
		}
		if err := l.Reopen(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	close2(t, l)
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) != rotations+1 {
		t.Fatalf("%v %v", names, err)
	}
	var all []line
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parse(t, text)...)
	}
	wantAll(t, all, writers*each)
	if err := l.Reopen(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("reopen after close: %v", err)
	}
}

// sink is a file that does what the test says.
type sink struct {
	mu    sync.Mutex
	text  []byte
	take  int           // bytes that the next writes take before they fail; negative: all
	block chan struct{} // nil: no write blocks
}

func (s *sink) Write(p []byte) (int, error) {
	if s.block != nil {
		<-s.block
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.take < 0 || s.take >= len(p) {
		s.text = append(s.text, p...)
		return len(p), nil
	}
	n := s.take
	s.take = 0
	s.text = append(s.text, p[:n]...)
	return n, syscall.ENOSPC
}

func (s *sink) Close() error { return nil }

func (s *sink) set(take int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take = take
}

func (s *sink) read() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.text)
}

func onSinks(t *testing.T, limit int, log io.Writer, sinks ...*sink) *Log {
	t.Helper()
	l := newLog(Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	l.limit = limit
	l.open = func() (io.WriteCloser, error) {
		if len(sinks) == 0 {
			return nil, syscall.EACCES
		}
		s := sinks[0]
		sinks = sinks[1:]
		return s, nil
	}
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestSlowSinkDropsAndNeverBlocks: a file that takes nothing costs bounded memory and no request waits.
func TestSlowSinkDropsAndNeverBlocks(t *testing.T) {
	s := &sink{take: -1, block: make(chan struct{})}
	var log bytes.Buffer
	l := onSinks(t, 10_000, &log, s)
	const recorded = 500 // of about 400 bytes each
	for i := range recorded {
		l.Record(sample(i)) // would hang here
	}
	if got := l.Stats().Dropped; got == 0 {
		t.Error("nothing was dropped")
	}
	hung, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Close(hung); !errors.Is(err, context.Canceled) {
		t.Errorf("close while the file hangs: %v", err)
	}
	close(s.block)
	close2(t, l)
	got := l.Stats()
	if n := len(parse(t, s.read())); int64(n) != got.Lines || got.Lines+got.Dropped != recorded {
		t.Errorf("%d lines in the file, %+v of %d", n, got, recorded)
	}
	if strings.Count(log.String(), "access log is not complete") != 1 {
		t.Errorf("%s", log.String())
	}
}

// TestReopenGivesUpOnAHangingFile: who asks for a new file waits as long as it wants to. The change is made
// when the old file answers.
func TestReopenGivesUpOnAHangingFile(t *testing.T) {
	first, second := &sink{take: -1, block: make(chan struct{})}, &sink{take: -1}
	l := onSinks(t, bufferBytes, io.Discard, first, second)
	l.Record(sample(0))
	hung, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.Reopen(hung); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reopen while the file hangs: %v", err)
	}
	close(first.block)
	close2(t, l)
	if n, m := len(parse(t, first.read())), len(parse(t, second.read())); n+m != 1 {
		t.Errorf("%d and %d lines, want one", n, m)
	}
}

// TestTornWritesLoseNothing: the disk is full in the middle of a line at every place, and has room again
// later, in the same file or in the next.
func TestTornWritesLoseNothing(t *testing.T) {
	length := len(sample(0).append(nil))
	for take := range 2*length + 1 {
		for _, reopened := range []bool{false, true} {
			first, second := &sink{take: take}, &sink{take: -1}
			l := onSinks(t, bufferBytes, io.Discard, first, second)
			for i := range 3 {
				l.Record(sample(i))
			}
			all := func() []byte { return first.read() }
			if reopened {
				if err := l.Reopen(t.Context()); err != nil {
					t.Fatal(err)
				}
				all = func() []byte {
					whole := first.read()
					return append(whole[:bytes.LastIndexByte(whole, '\n')+1], second.read()...)
				}
			} else {
				first.set(-1)
			}
			close2(t, l)
			wantAll(t, parse(t, all()), 3)
			if got := l.Stats(); got.Lines != 3 || got.Dropped != 0 {
				t.Fatalf("take %d, reopened %v: %+v", take, reopened, got)
			}
		}
	}
}

// TestFullDiskIsCounted: what the file never takes is counted as dropped at the end.
func TestFullDiskIsCounted(t *testing.T) {
	length := len(sample(0).append(nil))
	s := &sink{take: length + 1}
	var log bytes.Buffer
	l := onSinks(t, bufferBytes, &log, s)
	for i := range 5 {
		l.Record(sample(i))
	}
	if err := l.Reopen(t.Context()); err == nil {
		t.Error("reopen found a file")
	}
	close2(t, l)
	l.Record(sample(6)) // too late: dropped as well
	if got := l.Stats(); got.Lines != 1 || got.Dropped != 5 || got.Failures < 2 {
		t.Errorf("%+v", got)
	}
	if n := strings.Count(log.String(), "no space left"); n != 1 {
		t.Errorf("%d lines tell of it: %s", n, log.String())
	}
}

// TestFlushWithinASecond: a single line does not wait for others.
func TestFlushWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{take: -1}
		l := onSinks(t, bufferBytes, io.Discard, s)
		l.Record(sample(0))
		time.Sleep(flushEvery + time.Millisecond)
		synctest.Wait()
		wantAll(t, parse(t, s.read()), 1)
		close2(t, l)
	})
}

// TestRecordDoesNotAllocate after its buffers have grown.
func TestRecordDoesNotAllocate(t *testing.T) {
	l, err := Open(Options{To: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	e := sample(1)
	for range 10_000 {
		l.Record(e)
	}
	if n := testing.AllocsPerRun(5000, func() { l.Record(e) }); n >= 1 {
		t.Errorf("%v allocations per line", n)
	}
	close2(t, l)
}

func BenchmarkRecord(b *testing.B) {
	l, err := Open(Options{Path: filepath.Join(b.TempDir(), "access.log")})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		e := sample(1)
		for pb.Next() {
			l.Record(e)
		}
	})
	b.StopTimer()
	if err := l.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	s := l.Stats()
	b.ReportMetric(100*float64(s.Dropped)/float64(s.Dropped+s.Lines), "%dropped")
}

func BenchmarkEncode(b *testing.B) {
	e := sample(1)
	var line []byte
	b.ReportAllocs()
	for b.Loop() {
		line = e.append(line[:0])
	}
	b.SetBytes(int64(len(line)))
}
