package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
)

// demoLine is the last line of the demo. Rates are in GB/s, of 64 MiB objects moved 4 at a time.
type demoLine struct {
	OK       bool    `json:"ok"`
	GetHTTP  float64 `json:"get_http_gbps"`
	GetTCP   float64 `json:"get_tcp_gbps"`
	GetSHM   float64 `json:"get_shm_gbps"`
	PutHTTP  float64 `json:"put_http_gbps"`
	PutTCP   float64 `json:"put_tcp_gbps"`
	PutSHM   float64 `json:"put_shm_gbps"`
	Objects  int64   `json:"objects"` // stored, each read back and compared over every path
	Bytes    int64   `json:"bytes"`
	Compared int64   `json:"compared_bytes"`
	Seconds  float64 `json:"seconds"`
	Error    string  `json:"error,omitempty"`
}

const (
	demoBigBytes    = 1 << 30
	demoConcurrency = 8
	demoRegionBytes = 256 << 20
	demoBucket      = "demo"
	demoRounds      = 3
)

const demoHelp = `demo starts a node in a process and a directory of its own, stores a real tree (the Go standard
library's source and one file of 1 GiB), reads all of it back into registered memory over shm and tcp and
over HTTP, compares every byte and checks by the server's counters which way the payload went. Then it
measures each path with 64 MiB objects. The last line on stdout is one JSON object.`

func (a *app) demoCommand() *cobra.Command {
	var dir, source string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "store a real tree, read it back over every path, compare every byte",
		Long:  demoHelp,
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			start := time.Now()
			d := &demo{app: a, source: source}
			err := d.run(c.Context(), dir)
			d.line.OK, d.line.Seconds = err == nil, round2(time.Since(start).Seconds())
			if err != nil {
				d.line.Error = err.Error()
			}
			text, jsonErr := json.Marshal(d.line)
			if jsonErr != nil {
				return jsonErr
			}
			fmt.Fprintln(a.env.Stdout, string(text))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "where the node keeps its files; they are removed at the end")
	cmd.Flags().StringVar(&source, "source", "", "tree to store; default: the Go standard library's source")
	return cmd
}

func round2(v float64) float64 { return math.Round(v*100) / 100 }

type demo struct {
	app    *app
	source string
	node   *bench.Node
	files  []bench.File
	rows   []demoRow
	line   demoLine
}

// demoRow is one line of the table.
type demoRow struct {
	what, path              string
	objects                 int64
	gbps, serverCPU, client float64
	proof                   string // what the server counted
}

func (d *demo) run(ctx context.Context, parent string) (err error) {
	dir, err := bench.TempDir(parent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := d.makeTree(ctx, dir); err != nil {
		return err
	}
	d.node, err = bench.StartNode(ctx, bench.NodeOptions{
		Dir:   filepath.Join(dir, "node"),
		Flags: append(ownNodeFlags(), "--storage-segment", "256MiB"), // little is preallocated
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.node.Stop()) }()
	if err := d.moveTree(ctx); err != nil {
		return err
	}
	if err := d.clear(ctx); err != nil {
		return err
	}
	if err := d.measure(ctx); err != nil {
		return err
	}
	return d.table()
}

// makeTree lists the source tree and writes the large file.
func (d *demo) makeTree(ctx context.Context, dir string) error {
	if d.source == "" {
		out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("demo: find the Go source (or give --source): %w", err)
		}
		d.source = filepath.Join(strings.TrimSpace(string(out)), "src")
	}
	var err error
	if d.files, err = bench.ListTree(d.source, "src/"); err != nil {
		return err
	}
	name := filepath.Join(dir, "big")
	if err := writeRandom(name, demoBigBytes); err != nil {
		return err
	}
	d.files = append([]bench.File{{Name: name, Key: "big/1GiB", Bytes: demoBigBytes}}, d.files...)
	for _, f := range d.files {
		d.line.Bytes += f.Bytes
	}
	d.app.note("tree: %d files, %.2f GB, from %s", len(d.files), float64(d.line.Bytes)/1e9, d.source)
	return nil
}

func writeRandom(name string, n int64) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	source := rand.NewChaCha8([32]byte{7})
	buf := make([]byte, 1<<20)
	for left := n; left > 0; left -= int64(len(buf)) {
		_, _ = source.Read(buf) // documented to never fail
		if _, err := f.Write(buf); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	return nil
}

func (d *demo) client(path string) (*client.Client, error) {
	return client.New(client.Config{
		Endpoint: d.node.Endpoint, AWSRegion: "us-east-1", Fabric: client.Fabric(path),
		Credentials: client.Credentials{AccessKey: d.node.AccessKey, SecretKey: d.node.SecretKey},
		Logger:      d.app.logger(),
	})
}

// moveTree stores the tree over shm and reads it back over each path.
func (d *demo) moveTree(ctx context.Context) error {
	c, err := d.client(client.PathSHM)
	if err != nil {
		return err
	}
	err = bench.EnsureBucket(ctx, c, demoBucket)
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	put := func(ctx context.Context, c *client.Client, r *client.Region) (bench.Moved, error) {
		return bench.PutTree(ctx, c, d.tree(r))
	}
	if err := d.pass(ctx, "store tree", client.PathSHM, put); err != nil {
		return err
	}
	d.line.Objects = d.rows[0].objects
	compare := func(ctx context.Context, c *client.Client, r *client.Region) (bench.Moved, error) {
		return bench.CompareTree(ctx, c, d.tree(r))
	}
	for _, path := range []string{client.PathSHM, client.PathTCP, client.PathHTTP} {
		if err := d.pass(ctx, "read and compare tree", path, compare); err != nil {
			return err
		}
		d.line.Compared += d.line.Bytes
	}
	return nil
}

func (d *demo) tree(r *client.Region) bench.Tree {
	return bench.Tree{Bucket: demoBucket, Files: d.files, Region: r, Concurrency: demoConcurrency}
}

// pass runs one pass over the tree and proves its path.
func (d *demo) pass(
	ctx context.Context, what, path string,
	move func(context.Context, *client.Client, *client.Region) (bench.Moved, error),
) (err error) {
	c, err := d.client(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r, err := c.Alloc(demoRegionBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	before, err := d.counted(ctx)
	if err != nil {
		return err
	}
	cpuBefore, err := bench.ProcessCPU(d.node.PID())
	if err != nil {
		return err
	}
	ownBefore, err := bench.ProcessCPU(os.Getpid())
	if err != nil {
		return err
	}
	start := time.Now()
	moved, err := move(ctx, c, r)
	seconds := time.Since(start).Seconds()
	if err != nil {
		return fmt.Errorf("demo: %s over %s: %w", what, path, err)
	}
	cpu, err := bench.ProcessCPU(d.node.PID())
	if err != nil {
		return err
	}
	own, err := bench.ProcessCPU(os.Getpid())
	if err != nil {
		return err
	}
	after, err := d.counted(ctx)
	if err != nil {
		return err
	}
	if moved.Bytes != d.line.Bytes || (path != client.PathHTTP && moved.FabricBytes != moved.Bytes) {
		return fmt.Errorf("demo: %s over %s: moved %d bytes, %d by the fabric, expected %d", what, path,
			moved.Bytes, moved.FabricBytes, d.line.Bytes)
	}
	proof, err := after.prove(before, path, moved.Bytes)
	if err != nil {
		return fmt.Errorf("demo: %s over %s: %w", what, path, err)
	}
	gb := float64(moved.Bytes) / 1e9
	d.rows = append(d.rows, demoRow{
		what: what, path: path, objects: moved.Objects, gbps: gb / seconds,
		serverCPU: (cpu - cpuBefore) / gb, client: (own - ownBefore) / gb, proof: proof,
	})
	return nil
}

// counted is the server's payload counters, by path.
type counted map[string]float64

func (d *demo) counted(ctx context.Context) (counted, error) {
	values, err := bench.Counters(ctx, d.node.Metrics, "penstock_payload_bytes_total")
	if err != nil {
		return nil, err
	}
	sum := counted{}
	for labels, v := range values {
		for label := range strings.SplitSeq(labels, ",") {
			if path, ok := strings.CutPrefix(label, `path="`); ok {
				sum[strings.TrimSuffix(path, `"`)] += v
			}
		}
	}
	return sum, nil
}

// prove demands that the server moved exactly the payload by the path, and nothing by another.
func (c counted) prove(before counted, path string, bytes int64) (string, error) {
	for other, v := range c {
		moved := int64(v - before[other])
		switch {
		case other == path && moved != bytes:
			return "", fmt.Errorf("the server counted %d bytes by %s, expected %d", moved, path, bytes)
		case other != path && moved != 0:
			return "", fmt.Errorf("the server counted %d bytes by %s", moved, other)
		}
	}
	if _, ok := c[path]; !ok {
		return "", fmt.Errorf("the server counts nothing by %s", path)
	}
	return fmt.Sprintf("%d bytes by %s", bytes, path), nil
}

// clear removes the tree and the large file: what follows fits on a small disk.
func (d *demo) clear(ctx context.Context) error {
	c, err := d.client(client.PathHTTP)
	if err != nil {
		return err
	}
	keys := make([]string, 0, len(d.files))
	for _, f := range d.files {
		keys = append(keys, f.Key)
	}
	refused, err := c.DeleteMany(ctx, demoBucket, keys)
	if err == nil && len(refused) > 0 {
		err = fmt.Errorf("demo: %d keys were not deleted, among them %s", len(refused), refused[0].Key)
	}
	return errors.Join(err, c.Close(), os.Remove(d.files[0].Name))
}

// measure takes the rates with 64 MiB objects, 4 in flight, paths interleaved.
func (d *demo) measure(ctx context.Context) (err error) {
	c, err := d.client(client.PathSHM)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var tasks []bench.Task
	for _, kind := range []string{bench.Put, bench.Get} {
		for _, path := range []string{client.PathHTTP, client.PathTCP, client.PathSHM} {
			t := bench.Task{
				Name: kind + " " + path, Kind: kind, Path: path, ObjectBytes: 64 << 20, Objects: 8, InFlight: 4,
				Processes: 1, Ops: 32, Bucket: demoBucket, Prefix: "rate/",
			}
			if kind == bench.Put {
				t.Prefix, t.Objects, t.Ops = "rate/put/", 4, 8 // overwritten again and again
			}
			tasks = append(tasks, t)
		}
	}
	if err := bench.Load(ctx, c, tasks); err != nil {
		return err
	}
	list, err := bench.Run(ctx, tasks, bench.Options{
		Rounds: demoRounds, Environment: d.node.Environment(), ServerPID: d.node.PID(),
	})
	if err != nil {
		return err
	}
	into := map[string]*float64{
		"put http": &d.line.PutHTTP, "put tcp": &d.line.PutTCP, "put shm": &d.line.PutSHM,
		"get http": &d.line.GetHTTP, "get tcp": &d.line.GetTCP, "get shm": &d.line.GetSHM,
	}
	for _, m := range list {
		*into[m.Task.Name] = round2(m.GBps)
		d.rows = append(d.rows, demoRow{
			what: m.Task.Kind + " 64 MiB × 4", path: m.Task.Path, objects: int64(m.Task.Ops), gbps: m.GBps,
			serverCPU: m.ServerCPUPerGB, client: m.ClientCPUPerGB,
		})
	}
	return nil
}

func (d *demo) table() error {
	t := tabwriter.NewWriter(d.app.env.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "what\tpath\tobjects\tGB/s\tserver CPU-s/GB\tclient CPU-s/GB\tserver counted\t")
	for _, r := range d.rows {
		fmt.Fprintf(t, "%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%s\t\n", r.what, r.path, r.objects, r.gbps, r.serverCPU, r.client,
			r.proof)
	}
	return t.Flush()
}
