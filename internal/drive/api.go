package drive

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/penstock-store/penstock/internal/vfs"
)

const (
	// BlockBytes of payload share one CRC64NVME in the footer.
	BlockBytes = 64 << 10

	// MaxPayloadBytes is the largest payload of a record: a whole chunk.
	MaxPayloadBytes = 64 << 20

	// DefaultSegmentBytes keeps the number of files low (1,000 per TB) and a scan under a second.
	DefaultSegmentBytes = 1 << 30

	// DefaultGrace is how long a deleted record stays on the medium: longer than any request that
	// may have resolved it before the delete.
	DefaultGrace = 10 * time.Minute
)

var (
	// ErrNotFound says that the drive has no such record.
	ErrNotFound = errors.New("drive: no such record")
	// ErrExist says that the record exists already, or is being written.
	ErrExist = errors.New("drive: record exists")
	// ErrNoSpace says that there is no room beyond the reserve. Nothing was stored.
	ErrNoSpace = errors.New("drive: no space left beyond the reserve")
	// ErrReadOnly says that the drive takes no more writes because a sync or its index failed.
	ErrReadOnly = errors.New("drive: read-only after a failed sync or index write")
	// ErrCorrupt says that bytes on the drive are not what was written.
	ErrCorrupt = errors.New("drive: stored bytes fail verification")
	// ErrForeign says that the directory is no drive of this set.
	ErrForeign = errors.New("drive: not a drive of this set")
	// ErrNewer says that a newer version of the format is on the drive.
	ErrNewer = errors.New("drive: format is newer than this program")
	// ErrInvalid says that an argument is out of its limits or in the wrong order.
	ErrInvalid = errors.New("drive: invalid argument")
	// ErrClosed says that the drive or the writer is closed.
	ErrClosed = errors.New("drive: closed")
)

// UUID is a random 16-byte id of a drive, a set or a segment.
type UUID [16]byte

// String is the lower-case hex form.
func (u UUID) String() string { return hex.EncodeToString(u[:]) }

// Key names a record: one shard of one chunk.
type Key struct {
	Chunk [16]byte
	Shard uint8
}

// String is the chunk id and the shard.
func (k Key) String() string { return fmt.Sprintf("%x/%d", k.Chunk, k.Shard) }

// Record is what the drive knows of a record beside its payload.
type Record struct {
	Key
	Data, Parity uint8    // the chunk's scheme, not interpreted here
	Owner        [16]byte // upload or object version that the chunk belongs to
	Epoch        uint64   // process epoch of the writer
	Length       int64    // payload bytes of this record, 1..MaxPayloadBytes
	ChunkLength  int64    // payload bytes of the whole chunk
	ChunkCRC     uint64   // CRC64NVME of the whole chunk; given to Commit, ignored by Append
}

// Sums are the checksums that Commit stores.
type Sums struct {
	Blocks []uint64 // one CRC64NVME per BlockBytes of payload, the last for what is left
	Chunk  uint64   // CRC64NVME of the whole chunk
}

// Config of a drive. FS, Dir and Set must be given; zero values mean the defaults.
type Config struct {
	FS  vfs.FS
	Dir string
	Set UUID // the set that the drive must belong to

	SegmentBytes   int64         // default DefaultSegmentBytes; at least MinSegmentBytes
	ReserveBytes   int64         // free space that appends leave …
	ReservePercent int           // … or this share of the whole, whichever is more; default 1 GiB and 2
	NoReserve      bool          // for tests: appends may fill the drive
	Grace          time.Duration // default DefaultGrace; negative for none
	BufferedWrites bool          // do not try O_DIRECT
	DirectReads    bool          // read with O_DIRECT what is aligned
	RebuildIndex   bool          // throw the index away and build it from the segments

	Log *slog.Logger     // default: discard
	Now func() time.Time // default time.Now; decides when a grace is over

	manualTurns bool  // no background work; tests call Reclaim
	openReads   int64 // default maxOpenReads
}

// Mode says what a drive takes.
type Mode int

// Modes of a drive.
const (
	ReadWrite Mode = iota
	ReadOnly       // a sync or the index failed; reads go on
	Closed
)

// String names the mode.
func (m Mode) String() string { return [...]string{"read-write", "read-only", "closed"}[m] }

// State is the mode and, unless ReadWrite, its cause.
type State struct {
	Mode  Mode
	Cause error
}

// Stats are counts of one moment. Space is in bytes.
type Stats struct {
	Records      int64 // committed and not deleted
	RecordBytes  int64 // space of those records: header, padded payload, footer
	Pending      int64 // deleted and not yet punched
	PendingBytes int64
	Segments     int   // segment files
	SegmentBytes int64 // sum of their sizes
	Space        vfs.Space
	Reserve      int64
}
