package bench

import (
	"fmt"
)

// Names of the gate's measurements, as they appear in results.
const (
	nameReadFloor  = "floor: pread + CRC"
	nameWriteFloor = "floor: O_DIRECT write"
	nameTCPFloor   = "floor: loopback TCP"
	nameMD5Floor   = "floor: MD5, one core"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// Bound is one demand on a run.
type Bound struct {
	Name   string  `json:"name"`
	Demand string  `json:"demand"`
	Figure float64 `json:"figure"`
	Unit   string  `json:"unit"`
	Pass   bool    `json:"pass"`
}

// GateTasks are the measurements behind the bounds: large objects and their floors first, then small
// ones and process counts.
func GateTasks(bucket, dir string) []Task {
	const inFlight, objects = 4, 16
	large := func(name, kind, path string, ops int) Task {
		t := Task{Name: name, Kind: kind, Path: path, ObjectBytes: 64 * mib, Objects: objects, InFlight: inFlight,
			Processes: 1, Ops: ops, Bucket: bucket, Prefix: "64m-", Dir: dir}
		if kind == Put {
			t.Prefix = "put-64m-" + path + "-"
		}
		return t
	}
	small := func(kind string) Task {
		t := Task{Name: "4 KiB " + kind + " http", Kind: kind, Path: "http", ObjectBytes: 4 * kib, Objects: 512,
			InFlight: 16, Processes: 1, Seconds: 1.5, Bucket: bucket, Prefix: "4k-"}
		if kind == Put {
			t.Prefix = "put-4k-"
		}
		return t
	}
	spread := func(processes int) Task {
		t := large(fmt.Sprintf("64 MiB get shm, %d processes", processes), Get, "shm", 96/processes)
		t.InFlight, t.Processes = 8/processes, processes
		return t
	}
	return []Task{
		large(nameReadFloor, FloorRead, "", 96), large("64 MiB get shm", Get, "shm", 96),
		large(nameTCPFloor, FloorTCP, "", 48), large("64 MiB get http", Get, "http", 48),
		large("64 MiB get tcp", Get, "tcp", 48),
		large(nameWriteFloor, FloorWrite, "", 24), large("64 MiB put shm", Put, "shm", 24),
		large(nameMD5Floor, FloorMD5, "", 4).alone(), large("64 MiB put http", Put, "http", 16),
		large("64 MiB put tcp", Put, "tcp", 16),
		small(Get), small(Put), spread(2), spread(8),
	}
}

// alone runs a task on one thread.
func (t Task) alone() Task {
	t.InFlight = 1
	return t
}

// MemoryTasks are 64 parallel GETs of 1 GiB: windows that share 4 GiB of client memory over shm and
// tcp, and HTTP readers that discard. All of them run at once, in processes of their own.
func MemoryTasks(bucket string) []Task {
	task := func(path string, inFlight int) Task {
		return Task{Name: "1 GiB get " + path, Kind: Get, Path: path, ObjectBytes: gib, Objects: 1, InFlight: inFlight,
			Processes: 1, Ops: inFlight, Bucket: bucket, Prefix: "1g-", RegionBytes: 4 * gib, Discard: path == "http"}
	}
	return []Task{task("shm", 22), task("tcp", 21), task("http", 21)}
}

// results finds measurements by name.
type results map[string]Measurement

func (r results) gbps(name string) float64 { return r[name].GBps }

// GateBounds judges a run of GateTasks; peak is the server's private memory in bytes during
// MemoryTasks.
func GateBounds(list []Measurement, peak int64) []Bound {
	r := results{}
	for _, m := range list {
		r[m.Task.Name] = m
	}
	getSHM, getHTTP, getTCP := r.gbps("64 MiB get shm"), r.gbps("64 MiB get http"), r.gbps("64 MiB get tcp")
	floor := r[nameReadFloor]
	timesHTTP := ratio(getSHM, getHTTP)
	cpu := ratio(r["64 MiB get shm"].ServerCPUPerGB, floor.ClientCPUPerGB)
	spread := ratio(r.gbps("64 MiB get shm, 8 processes"), r.gbps("64 MiB get shm, 2 processes"))
	atLeast := func(name, demand string, figure, least float64, unit string) Bound {
		return Bound{name, demand, figure, unit, figure >= least}
	}
	return []Bound{
		atLeast("shm GET against pread + CRC", "≥ 0.70", ratio(getSHM, floor.GBps), 0.70, "×"),
		{"shm GET against HTTP GET", "≥ 3, or shm ≥ 10 GB/s", timesHTTP, "×", timesHTTP >= 3 || getSHM >= 10},
		{"shm GET server CPU against pread + CRC", "≤ 1.3", cpu, "×", cpu > 0 && cpu <= 1.3},
		atLeast("shm PUT against bare write", "≥ 0.70",
			ratio(r.gbps("64 MiB put shm"), r.gbps(nameWriteFloor)), 0.70, "×"),
		atLeast("HTTP GET against loopback", "≥ 0.65", ratio(getHTTP, r.gbps(nameTCPFloor)), 0.65, "×"),
		atLeast("HTTP PUT against MD5 of one core", "≥ 0.75",
			ratio(r.gbps("64 MiB put http"), r.gbps(nameMD5Floor)), 0.75, "×"),
		atLeast("tcp GET against HTTP GET", "≥ 1", ratio(getTCP, getHTTP), 1, "×"),
		atLeast("4 KiB GET over HTTP, 16 in flight", "≥ 8000", r["4 KiB get http"].OpsPerSecond, 8000, "op/s"),
		atLeast("4 KiB durable PUT over HTTP, 16 in flight", "≥ 5000", r["4 KiB put http"].OpsPerSecond, 5000, "op/s"),
		atLeast("8 client processes against 2", "≥ 0.90", spread, 0.90, "×"),
		{"server memory, 64 GETs of 1 GiB", "< 1 GiB", float64(peak) / gib, "GiB", peak > 0 && peak < gib},
	}
}
