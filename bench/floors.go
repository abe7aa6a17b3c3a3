package bench

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock-store/penstock/internal/checksum"
)

const (
	pieceBytes = 64 << 10 // what is read and summed at once, while it is in the cache
	writeBytes = 4 << 20  // of one O_DIRECT write
	copyBytes  = 1 << 20  // of one write to a loopback socket
)

// fill writes random bytes that no layer can compress.
func fill(b []byte) {
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // documented to never fail
}

// mapMemory maps n zero bytes, populated. shared: as a memfd, like a registered region.
func mapMemory(n int64, shared bool) ([]byte, error) {
	if !shared {
		b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
		if err != nil {
			return nil, fmt.Errorf("bench: map %d bytes: %w", n, err)
		}
		return b, nil
	}
	fd, err := unix.MemfdCreate("penstock-bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("bench: memfd: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, n); err != nil {
		return nil, fmt.Errorf("bench: memfd: %w", err)
	}
	b, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("bench: map memfd: %w", err)
	}
	return b, nil
}

// prepareRead makes one file per object, warm in the page cache, and a memfd window per slot. An
// operation preads one whole file in pieces, summing each.
func prepareRead(t Task) (_ runner, err error) {
	mem, err := mapMemory(t.ObjectBytes*int64(t.InFlight), true)
	if err != nil {
		return runner{}, err
	}
	files := make([]*os.File, max(1, t.Objects))
	stop := func() {
		for _, f := range files {
			if f != nil {
				_ = f.Close() // scratch files: what is left of them falsifies nothing
				_ = os.Remove(f.Name())
			}
		}
		_ = unix.Munmap(mem)
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	payload := mem[:t.ObjectBytes]
	fill(payload)
	for i := range files {
		if files[i], err = os.CreateTemp(t.Dir, "floor-read-*"); err != nil {
			return runner{}, err
		}
		if _, err = files[i].Write(payload); err != nil {
			return runner{}, err
		}
		if err = files[i].Sync(); err != nil { // nothing is written back while the clock runs
			return runner{}, err
		}
	}
	sums := make([]uint64, t.InFlight) // kept, so that no sum can be left out
	op := func(_ context.Context, slot, i int) (int64, error) {
		fd := int(files[i%len(files)].Fd())
		window := mem[int64(slot)*t.ObjectBytes:][:t.ObjectBytes]
		for at := int64(0); at < t.ObjectBytes; {
			piece := window[at:min(at+pieceBytes, t.ObjectBytes)]
			n, err := unix.Pread(fd, piece, at)
			if err != nil || n != len(piece) {
				return at, fmt.Errorf("bench: pread %d of %d bytes: %w", n, len(piece),
					errors.Join(err, io.ErrUnexpectedEOF))
			}
			sums[slot] ^= checksum.Sum(piece)
			at += int64(n)
		}
		return t.ObjectBytes, nil
	}
	for i := range files { // the first pass is not part of the measurement
		if _, err = op(context.Background(), 0, i); err != nil {
			return runner{}, err
		}
	}
	return runner{op: op, close: stop}, nil
}

// prepareWrite preallocates one file as a drive preallocates its segments. An operation writes one
// object's bytes in 4 MiB O_DIRECT writes and syncs them.
func prepareWrite(t Task) (_ runner, err error) {
	if t.Ops == 0 || t.ObjectBytes%writeBytes != 0 {
		return runner{}, fmt.Errorf("bench: %s needs ops, and objects in units of %d", t.Name, writeBytes)
	}
	mem, err := mapMemory(t.ObjectBytes*int64(t.InFlight), true)
	if err != nil {
		return runner{}, err
	}
	fill(mem)
	name := filepath.Join(t.Dir, "floor-write")
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EINVAL) { // a file system without O_DIRECT
		fd, err = unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		_ = unix.Munmap(mem)
		return runner{}, fmt.Errorf("bench: open %s: %w", name, err)
	}
	stop := func() {
		_ = unix.Close(fd) // a scratch file: what is left of it falsifies nothing
		_ = os.Remove(name)
		_ = unix.Munmap(mem)
	}
	if err := unix.Fallocate(fd, 0, 0, t.ObjectBytes*int64(t.Ops)); err != nil {
		stop()
		return runner{}, fmt.Errorf("bench: preallocate %s: %w", name, err)
	}
	if err := unix.Fsync(fd); err != nil {
		stop()
		return runner{}, fmt.Errorf("bench: sync %s: %w", name, err)
	}
	op := func(_ context.Context, slot, i int) (int64, error) {
		window := mem[int64(slot)*t.ObjectBytes:][:t.ObjectBytes]
		base := int64(i) * t.ObjectBytes
		for at := int64(0); at < t.ObjectBytes; at += writeBytes {
			n, err := unix.Pwrite(fd, window[at:at+writeBytes], base+at)
			if err != nil || n != writeBytes {
				return at, fmt.Errorf("bench: pwrite %d of %d bytes: %w", n, writeBytes,
					errors.Join(err, io.ErrShortWrite))
			}
		}
		return t.ObjectBytes, unix.Fdatasync(fd)
	}
	return runner{op: op, close: stop}, nil
}

// prepareTCP opens one loopback connection per slot to a process of its own, as a client has to a node.
// An operation asks for one object, which the other process sends from memory into the slot's window.
// Objects and windows are as many and as long as those of the GETs that are compared with it: a small
// buffer sent again and again would stay in the cache.
func prepareTCP(t Task) (_ runner, err error) {
	var sender pool
	var conns []net.Conn
	var windows []byte
	stop := func() {
		for _, c := range conns {
			_ = c.Close() // nothing is under way
		}
		sender.stop()
		if windows != nil {
			_ = unix.Munmap(windows)
		}
	}
	defer func() {
		if err != nil {
			stop()
			err = fmt.Errorf("bench: loopback: %w", err)
		}
	}()
	if err := sender.grow(1); err != nil {
		return runner{}, err
	}
	ask := t
	ask.Kind = floorTCPSender
	if err := sender.workers[0].send(request{Task: &ask}); err != nil {
		return runner{}, err
	}
	ready, err := sender.workers[0].receive()
	if err != nil {
		return runner{}, err
	}
	for range t.InFlight {
		c, err := net.Dial("tcp", ready.Address)
		if err != nil {
			return runner{}, err
		}
		conns = append(conns, c)
	}
	if windows, err = mapMemory(pages(t.ObjectBytes*int64(t.InFlight)), true); err != nil {
		return runner{}, err
	}
	op := func(_ context.Context, slot, i int) (int64, error) {
		if _, err := conns[slot].Write([]byte{byte(i % t.Objects)}); err != nil {
			return 0, err
		}
		_, err := io.ReadFull(conns[slot], windows[int64(slot)*t.ObjectBytes:][:t.ObjectBytes])
		return t.ObjectBytes, err
	}
	return runner{op: op, close: stop}, nil
}

// pages rounds up to whole pages.
func pages(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

// prepareTCPSender is the other end of prepareTCP.
func prepareTCPSender(t Task) (runner, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return runner{}, fmt.Errorf("bench: loopback: %w", err)
	}
	source, err := mapMemory(pages(t.ObjectBytes*int64(t.Objects)), true)
	if err != nil {
		_ = listener.Close()
		return runner{}, err
	}
	fill(source)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() {
				defer c.Close()
				send(c, source, t.ObjectBytes)
			})
		}
	})
	stop := func() {
		_ = listener.Close() // ends Accept
		serving.Wait()
		_ = unix.Munmap(source)
	}
	return runner{close: stop, address: listener.Addr().String()}, nil
}

// send answers each byte with the object of that number, of n bytes, until the connection is closed.
func send(c net.Conn, source []byte, n int64) {
	var ask [1]byte
	for {
		if _, err := io.ReadFull(c, ask[:]); err != nil {
			return
		}
		for object := source[int64(ask[0])*n:][:n]; len(object) > 0; {
			sent, err := c.Write(object[:min(len(object), copyBytes)])
			if err != nil {
				return
			}
			object = object[sent:]
		}
	}
}

// prepareMD5 sums one object's bytes per operation.
func prepareMD5(t Task) (runner, error) {
	mem, err := mapMemory(t.ObjectBytes, false)
	if err != nil {
		return runner{}, err
	}
	fill(mem)
	var last [md5.Size]byte
	op := func(context.Context, int, int) (int64, error) {
		last = md5.Sum(mem)
		return int64(len(mem)), nil
	}
	return runner{op: op, close: func() { _ = unix.Munmap(mem); _ = last }}, nil
}
