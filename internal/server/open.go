package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/penstock-store/penstock/internal/admin"
	"github.com/penstock-store/penstock/internal/arena"
	"github.com/penstock-store/penstock/internal/chunk/local"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/drive"
	"github.com/penstock-store/penstock/internal/fabric"
	"github.com/penstock-store/penstock/internal/fabric/shm"
	"github.com/penstock-store/penstock/internal/fabric/tcp"
	"github.com/penstock-store/penstock/internal/fabric/verbs"
	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/gateway"
	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/meta"
	"github.com/penstock-store/penstock/internal/meta/kv/pebble"
	"github.com/penstock-store/penstock/internal/store"
	"github.com/penstock-store/penstock/internal/vfs"
	"github.com/penstock-store/penstock/internal/work"
)

// Names in the data directory; docs/operations.md lists them.
const (
	lockName = "lock"
	metaName = "meta"
)

func (s *Server) openData(context.Context) error {
	dir := s.config.Data
	if err := vfs.MakeDir(s.fs, dir); err != nil {
		return err
	}
	lock, err := s.fs.Lock(filepath.Join(dir, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("%s: %w", dir, ErrLocked)
	}
	if err != nil {
		return err
	}
	s.onClose("lock", lock.Close)
	s.identity, err = loadIdentity(dir)
	return err
}

func (s *Server) openRoot(context.Context) error {
	if given := s.config.Root; given.AccessKey != "" {
		s.root = iam.Key{ID: given.AccessKey, Secret: meta.Secret(given.SecretKey), Principal: iam.Root}
		return nil
	}
	key, path, created, err := iam.RootKey(s.config.Data)
	if err != nil {
		return err
	}
	s.root, s.credentials = key, path
	if created {
		s.log.Info("root's access key was made", "file", path, "access_key", key.ID)
	}
	return nil
}

func (s *Server) openArena(context.Context) (err error) {
	a := s.config.Arena
	s.arena, err = arena.New(arena.Options{Wait: a.Wait, Shares: []arena.ShareOption{
		{Name: gateway.ShareFabric, Buffers: a.FabricBuffers, BufferBytes: gateway.FabricBufferBytes},
		{Name: gateway.ShareHTTP, Buffers: a.HTTPBuffers, BufferBytes: gateway.HTTPBufferBytes},
		{Name: gateway.ShareSmall, Buffers: a.SmallBuffers, BufferBytes: gateway.SmallBufferBytes},
	}})
	if err == nil {
		s.onClose("buffers", s.arena.Close)
	}
	return err
}

// openMeta creates the metadata at the first start only.
func (s *Server) openMeta(context.Context) (err error) {
	s.kv, err = pebble.Open(pebble.Config{
		FS: s.fs, Dir: filepath.Join(s.config.Data, metaName), MustExist: !s.first(), Logger: s.log,
		CacheBytes: int64(s.config.Storage.KVCache),
		OnFatal: func(cause error) {
			s.broken.Store(&cause)
			s.log.Error("metadata takes no more writes", "error", cause)
		},
	})
	if errors.Is(err, pebble.ErrMissing) {
		return fmt.Errorf("%w: %w", ErrNoMetadata, err)
	}
	if err == nil {
		s.onClose("metadata", s.kv.Close)
	}
	return err
}

// first tells whether no start has come as far as bindDrive.
func (s *Server) first() bool { return s.identity.Drive == drive.UUID{} }

// openDrive formats the drive at the first start only.
func (s *Server) openDrive(ctx context.Context) error {
	c := drive.Config{
		FS: s.fs, Dir: s.config.Drives[0], Set: s.identity.Set,
		SegmentBytes: int64(s.config.Storage.Segment), ReserveBytes: int64(s.config.Storage.Reserve),
		Grace: s.config.Storage.Grace, DirectReads: s.config.Storage.DirectRead, Log: s.log,
	}
	if c.Grace == 0 {
		c.Grace = -1 // none; its zero value means the default
	}
	if s.first() {
		_, err := drive.Format(c)
		// Formatted already, and then killed: it is ours if Open and the metadata say so.
		if err != nil && !errors.Is(err, drive.ErrExist) {
			return fmt.Errorf("format %s: %w", c.Dir, err)
		}
	}
	d, err := drive.Open(ctx, c)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Dir, err)
	}
	s.drive = d
	s.onClose("drive", d.Close)
	if !s.first() && d.ID() != s.identity.Drive {
		return fmt.Errorf("%s: %w: it is drive %v, want %v", c.Dir, drive.ErrForeign, d.ID(), s.identity.Drive)
	}
	s.warnFull()
	s.chunks = local.New(local.Options{Drive: d})
	s.onClose("chunk engine", func() error {
		end, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		return s.chunks.Close(end)
	})
	return nil
}

// warnFull says that the drive takes no payload as it is: every PUT of more than an inline object will be refused.
func (s *Server) warnFull() {
	stats, err := s.drive.Stats()
	if err == nil && stats.Space.Free <= stats.Reserve {
		s.log.Warn("drive has no room for payload", "drive", s.config.Drives[0], "free_bytes", stats.Space.Free,
			"reserve_bytes", stats.Reserve, "remedy", "space, or a smaller storage.reserve")
	}
}

// bindDrive ties metadata and drive together at the first start, and checks later that they still are
// the ones. The node file has the drive's id only after that: from then on both must be there.
func (s *Server) bindDrive(ctx context.Context) error {
	stats, err := s.drive.Stats()
	if err != nil {
		return err
	}
	err = meta.Bind(ctx, s.kv, meta.Drives{
		Set: s.identity.Set, IDs: [][16]byte{s.drive.ID()}, Records: stats.Records, Epoch: s.drive.NewestEpoch(),
	})
	if err != nil {
		return fmt.Errorf("%s and %s: %w", filepath.Join(s.config.Data, metaName), s.config.Drives[0], err)
	}
	if !s.first() {
		return nil
	}
	s.identity.Drive = s.drive.ID()
	return s.identity.save(s.config.Data)
}

func (s *Server) openStore(ctx context.Context) (err error) {
	var collector atomic.Pointer[work.Collector] // the store exists first
	s.store, err = store.New(ctx, store.Options{
		KV: s.kv, Chunks: s.chunks, CopyShare: s.arena.Share(gateway.ShareHTTP), AWSRegion: s.config.HTTP.Region,
		Log: s.log,
		OnGarbage: func() {
			if c := collector.Load(); c != nil {
				c.Wake()
			}
		},
	})
	if err != nil {
		return err
	}
	s.collector = work.New(work.Options{KV: s.kv, Chunks: s.chunks, Epoch: s.store.Epoch(), Log: s.log})
	collector.Store(s.collector)
	return nil
}

func (s *Server) openFabrics(context.Context) error {
	r := s.config.RDMA
	ledger := fabric.NewLedger(fabric.Limits{
		SessionsPerPrincipal: r.Sessions, RegionsPerSession: r.Regions, MappedBytes: int64(r.MappedBytes),
	})
	fabrics := slices.Clone(s.further)
	for _, f := range fabrics {
		if x, ok := f.(fabric.Exchange); ok {
			s.exchange = x
		}
	}
	add := func(name string, f fabric.Fabric, err error) error {
		if errors.Is(err, fabric.ErrNotSupported) {
			s.log.Warn("fabric is not possible on this machine", "fabric", name, "error", err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, errors.Join(err, fabric.NewManager(ledger, fabrics...).Close()))
		}
		s.warnLocal(f)
		fabrics = append(fabrics, f)
		return nil
	}
	if r.Enabled && r.Shm {
		f, err := shm.New(shm.Options{Ledger: ledger, Address: r.ShmSocket, NoForeign: !r.ShmForeign, Logger: s.log})
		if err := add(shm.Name, f, err); err != nil {
			return err
		}
	}
	if r.Enabled && r.TCP {
		o := tcp.Options{Ledger: ledger, Address: r.TCPListen, Advertise: r.TCPAdvertise, Logger: s.log}
		f, err := tcp.New(o)
		if err := add(tcp.Name, f, err); err != nil {
			return err
		}
	}
	if r.Enabled && r.RC {
		f, err := s.openVerbs(ledger)
		if err := add(verbs.Name, f, err); err != nil {
			return err
		}
		if r.DC {
			if f, ok := s.openDC(); ok {
				fabrics = append(fabrics, f)
			}
		}
		if r.RCTokens {
			if f, ok := s.openRCTokens(); ok {
				fabrics, s.connector = append(fabrics, f), f
			}
		}
		if r.HipObj {
			f, ok, err := s.openHip()
			if err != nil {
				return errors.Join(err, fabric.NewManager(ledger, fabrics...).Close())
			}
			if ok {
				fabrics, s.exchange = append(fabrics, f), f
			}
		}
	}
	s.fabrics = fabric.NewManager(ledger, fabrics...)
	s.onClose("fabrics", s.closeFabrics)
	return nil
}

// warnLocal says that a fabric serves this host only while the S3 endpoint serves others: their payload takes HTTP.
func (s *Server) warnLocal(f fabric.Fabric) {
	if thisHost(s.config.HTTP.Listen) {
		return
	}
	for _, r := range f.Rails() {
		if r.Network == "tcp" && r.Up && thisHost(r.Address) {
			s.log.Warn("fabric is reached from this host only", "fabric", f.Name(), "address", r.Address,
				"remedy", "rdma."+f.Name()+"_listen")
		}
	}
}

// thisHost tells whether only this host reaches an address to listen on.
func thisHost(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip, notIP := netip.ParseAddr(host)
	return err == nil && (host == "localhost" || notIP == nil && ip.Unmap().IsLoopback())
}

func (s *Server) openKeys(ctx context.Context) (err error) {
	s.keys, err = iam.Open(ctx, iam.Options{
		Storage: meta.AccessKeys{KV: s.kv}, Root: s.root, Revoked: s.fabrics.RevokePrincipal,
	})
	return err
}

func (s *Server) openGateway(context.Context) (err error) {
	l, r := s.config.Limits, s.config.RDMA
	if r.Decline == config.DeclineSpec {
		s.log.Warn("declined transfers are answered with success", "setting", "rdma.decline",
			"remedy", "only for clients that read x-amz-rdma-reply; docs/compat.md lists those that do not")
	}
	if name := s.config.Test.AnonymousBucket; name != "" {
		// An error, so that no log level hides it.
		s.log.Error("ANYBODY ON THIS MACHINE MAY READ AND WRITE A BUCKET WITHOUT A SIGNATURE", "bucket", name,
			"setting", "test.anonymous_bucket", "remedy", "for tests only: remove it from a node whose data count")
	}
	api := admin.New(s.keys)
	s.gateway, err = gateway.New(gateway.Options{
		Store: s.store, Keys: s.keys, Arena: s.arena, Fabrics: s.fabrics, Node: s.identity.Node, Host: hostID(),
		AWSRegion: s.config.HTTP.Region, Domains: s.config.HTTP.Domains, TLS: s.config.HTTP.TLSCert != "",
		Limits: gateway.Limits{
			HeaderBytes: int64(l.HeaderBytes), Requests: int64(l.Requests), DocumentBytes: int64(l.DocumentBytes),
			Stall: l.StallTimeout, MinRate: int64(l.MinRate), KeepAlive: l.KeepAlive,
		},
		RDMA: gateway.RDMA{
			Enabled: r.Enabled, Deadline: r.Deadline, SessionDeadline: r.SessionDeadline,
			SpecDecline: r.Decline == config.DeclineSpec, Aliases: r.Aliases, UnsignedConnect: r.UnsignedConnect,
		},
		Connector:       s.connector,
		Exchange:        s.exchange,
		AnonymousBucket: s.config.Test.AnonymousBucket,
		Extra: map[string]gateway.Signed{
			admin.Prefix: func(ctx context.Context, r gateway.SignedRequest) (int, []byte, error) {
				return api.Answer(ctx, admin.Request{
					Method: r.Method, Path: r.Path, Principal: r.Principal, Body: r.Body,
				})
			},
		},
		Ready: s.checkReady, Metrics: gateway.NewMetrics(s.registry), Access: s.access, Log: s.log,
	})
	return err
}

// hostID names this machine to clients that look for shm. A machine without these files has none, and
// shm is then found out by trying.
func hostID() string {
	machine, machineErr := os.ReadFile("/etc/machine-id")
	boot, bootErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if machineErr != nil && bootErr != nil {
		return ""
	}
	return frame.HostID(machine, boot)
}
