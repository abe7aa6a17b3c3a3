package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-store/penstock/bench"
	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
)

// benchOptions are the flags of bench.
type benchOptions struct {
	profile, record, dir, bucket string
	sizes, paths, ops            []string
	objects, inFlight, processes int
	rounds                       int
	seconds                      float64
	serverPID                    int
	metrics                      string
	floors, ownNode, keep        bool
}

const benchHelp = `bench writes and reads objects over http, tcp, rc and shm (--paths), interleaved, and measures
beside them the floors of the machine: pread into a memfd with CRC64NVME, O_DIRECT writes, loopback TCP,
MD5 on one core.

Without AWS_ENDPOINT_URL and --endpoint-url, or with --own-node, it starts a node of its own below --dir
and removes it afterwards. Server CPU comes from --server-pid or --metrics-url, or from its own node.

--profile gate runs the project's bounds on a node of its own and exits 1 when one is missed.`

func (a *app) benchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "measure a node over its fabrics and http, and the machine's floors",
		Long:  benchHelp,
		Args:  args(cobra.NoArgs),
		RunE:  func(c *cobra.Command, _ []string) error { return a.bench(c.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.profile, "profile", "", "gate: the bounds that must hold")
	f.StringVar(&o.record, "record", "", "directory in which the result is recorded as JSON")
	f.StringVar(&o.dir, "dir", ".", "where the node and the floors keep their files")
	f.StringVar(&o.bucket, "bucket", "penstock-bench", "bucket, created when missing")
	f.StringSliceVar(&o.sizes, "sizes", []string{"4KiB", "1MiB", "64MiB"}, "object lengths")
	f.StringSliceVar(&o.paths, "paths", []string{"http", "tcp", "shm"},
		"paths of the payload, among http, tcp, rc and shm; shm-foreign is shm into memory of the heap, not for root")
	f.StringSliceVar(&o.ops, "ops", []string{"put", "get"}, "operations")
	f.IntVarP(&o.objects, "objects", "n", 16, "objects per length, used in turn")
	f.IntVar(&o.inFlight, "in-flight", 4, "requests in flight, all processes together")
	f.IntVar(&o.processes, "processes", 1, "client processes, 1..16")
	f.IntVar(&o.rounds, "rounds", 5, "rounds; medians are reported")
	f.Float64Var(&o.seconds, "seconds", 1, "length of each measurement")
	f.IntVar(&o.serverPID, "server-pid", 0, "process of the server on this host")
	f.StringVar(&o.metrics, "metrics-url", "", "/metrics of the server")
	f.BoolVar(&o.floors, "floors", true, "measure the floors too")
	f.BoolVar(&o.ownNode, "own-node", false, "start a node for the run")
	f.BoolVar(&o.keep, "keep", false, "keep the files of the own node")
	cmd.AddCommand(&cobra.Command{
		Use: "worker", Hidden: true, Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return bench.Work(c.Context(), a.env.Stdin, a.env.Stdout) },
	})
	return cmd
}

// benchFloorOps bounds the written bytes of a floor: it keeps a whole file.
const benchFloorOps = 24

func (o benchOptions) tasks(dir string) ([]bench.Task, error) {
	var tasks []bench.Task
	if o.processes < 1 || o.inFlight < o.processes {
		return nil, usagef("%d in flight do not spread over %d processes", o.inFlight, o.processes)
	}
	for _, text := range o.sizes {
		size, err := config.ParseBytes(text)
		if err != nil {
			return nil, usageError{err}
		}
		for _, op := range o.ops {
			if op != bench.Get && op != bench.Put {
				return nil, usagef("operation %q is not get or put", op)
			}
			for _, path := range o.paths {
				if !slices.Contains([]string{"http", "tcp", "rc", "shm", bench.PathForeign}, path) {
					return nil, usagef("path %q is not http, tcp, rc, shm or shm-foreign", path)
				}
				t := bench.Task{
					Name: fmt.Sprintf("%s %s %s", text, op, path), Kind: op, Path: path, ObjectBytes: int64(size),
					Objects: o.objects, InFlight: o.inFlight / o.processes, Processes: o.processes, Seconds: o.seconds,
					Bucket: o.bucket, Prefix: text + "-",
				}
				if op == bench.Put {
					t.Prefix = "put-" + path + "-" + t.Prefix
				}
				tasks = append(tasks, t)
			}
		}
	}
	if !o.floors {
		return tasks, nil
	}
	for _, kind := range []string{bench.FloorRead, bench.FloorWrite, bench.FloorTCP, bench.FloorMD5} {
		t := bench.Task{
			Name: kind, Kind: kind, ObjectBytes: 64 << 20, Objects: 8, InFlight: o.inFlight, Processes: 1,
			Seconds: o.seconds, Dir: dir,
		}
		switch kind {
		case bench.FloorWrite:
			t.Ops, t.Seconds = benchFloorOps, 0
		case bench.FloorMD5:
			t.InFlight = 1
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

func (a *app) bench(ctx context.Context, o benchOptions) (err error) {
	gate := o.profile == "gate"
	if o.profile != "" && !gate {
		return usagef("there is no profile %q", o.profile)
	}
	dir, err := bench.TempDir(o.dir)
	if err != nil {
		return err
	}
	defer func() {
		if !o.keep {
			if rmErr := os.RemoveAll(dir); err == nil {
				err = rmErr
			}
		}
	}()
	tasks, err := o.tasks(dir)
	if gate {
		tasks, err = bench.GateTasks(o.bucket, dir), nil
	}
	if err != nil {
		return err
	}
	run := bench.Options{Rounds: o.rounds, ServerPID: o.serverPID, Metrics: o.metrics, Log: a.note}
	cfg := a.clientConfig()
	if gate || o.ownNode || firstOf(a.endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL")) == "" {
		node, err := bench.StartNode(ctx, bench.NodeOptions{Dir: dir + "/node", Flags: ownNodeFlags()})
		if err != nil {
			return err
		}
		defer func() {
			if stopErr := node.Stop(); err == nil {
				err = stopErr
			}
		}()
		run.ServerPID, run.Environment = node.PID(), node.Environment()
		cfg.Endpoint = node.Endpoint
		cfg.Credentials = client.Credentials{AccessKey: node.AccessKey, SecretKey: node.SecretKey}
	} else {
		if a.clientCert != "" {
			return usagef("bench: its processes take no client certificate")
		}
		run.Environment = []string{"AWS_ENDPOINT_URL=" + firstOf(a.endpoint, os.Getenv("AWS_ENDPOINT_URL"))}
		if a.region != "" {
			run.Environment = append(run.Environment, "AWS_REGION="+a.region)
		}
		if a.caBundle != "" {
			run.Environment = append(run.Environment, "AWS_CA_BUNDLE="+a.caBundle)
		}
	}
	report, err := a.runBench(ctx, o, cfg, tasks, run)
	if err != nil {
		return err
	}
	return a.reportBench(report, o.record)
}

// ownNodeFlags give back the space of overwritten objects soon and reserve little, so that a run fits
// on the disk.
func ownNodeFlags() []string {
	return []string{"--storage-grace", "1s", "--storage-reserve", "128MiB", "--log-level", "warn"}
}

func (a *app) runBench(
	ctx context.Context, o benchOptions, cfg client.Config, tasks []bench.Task, run bench.Options,
) (bench.Report, error) {
	c, err := client.New(cfg)
	if err != nil {
		return bench.Report{}, err
	}
	defer c.Close()
	gate := o.profile == "gate"
	report := bench.NewReport(ctx, firstOf(o.profile, "custom"), o.dir, o.rounds)
	if err := bench.EnsureBucket(ctx, c, o.bucket); err != nil {
		return report, err
	}
	var memory []bench.Task
	if gate {
		memory = bench.MemoryTasks(o.bucket)
	}
	if err := bench.Load(ctx, c, append(slices.Clone(tasks), memory...)); err != nil {
		return report, err
	}
	if report.Measurements, err = bench.Run(ctx, tasks, run); err != nil {
		return report, err
	}
	if !gate {
		return report, nil
	}
	m, err := bench.RunTogether(ctx, "64 × 1 GiB get, all paths", memory, run)
	if err != nil {
		return report, err
	}
	report.Judge(bench.GateBounds(report.Measurements, m.PeakMemory))
	report.Measurements = append(report.Measurements, m)
	return report, nil
}

func (a *app) reportBench(report bench.Report, record string) error {
	if record != "" {
		name, err := report.Record(record)
		if err != nil {
			return err
		}
		a.note("recorded in %s", name)
	}
	if a.json {
		if err := a.emit(report, ""); err != nil {
			return err
		}
	} else if err := report.WriteTable(a.env.Stdout); err != nil {
		return err
	}
	if report.OK {
		return nil
	}
	var missed []string
	for _, b := range report.Bounds {
		if !b.Pass {
			missed = append(missed, fmt.Sprintf("%s (%.2f %s, demanded %s)", b.Name, b.Figure, b.Unit, b.Demand))
		}
	}
	return fmt.Errorf("bench: bounds missed: %s", strings.Join(missed, "; "))
}
