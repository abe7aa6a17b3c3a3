package drive

import "context"

// Drive is an open drive. Safe for concurrent use.
type Drive struct{}

// Format makes the empty or missing directory dir a drive of the set and returns its id. It is
// durable when it returns. A directory that holds anything else is refused with ErrForeign.
func Format(cfg Config) (UUID, error) { return UUID{}, ErrInvalid }

// Open locks and opens a drive and recovers what an unclean stop left: unsealed segments are scanned
// and reconciled with the index; a missing index is built anew. Errors: ErrForeign, ErrNewer,
// ErrCorrupt, vfs.ErrLocked.
func Open(ctx context.Context, cfg Config) (*Drive, error) { return nil, ErrInvalid }

// ID is the drive's id.
func (d *Drive) ID() UUID { return UUID{} }

// State says what the drive takes.
func (d *Drive) State() State { return State{} }

// Stats counts.
func (d *Drive) Stats() (Stats, error) { return Stats{}, nil }

// Append reserves the place of a record. The Writer must be ended by Commit or Abort. It waits
// only for a new segment to be created. Errors: ErrNoSpace, ErrReadOnly, ErrExist, ErrInvalid.
func (d *Drive) Append(ctx context.Context, r Record) (*Writer, error) { return nil, ErrInvalid }

// Lookup finds a record and pins it: the Location stays readable, even if the record is deleted
// meanwhile, until its Release. Errors: ErrNotFound.
func (d *Drive) Lookup(k Key) (*Location, error) { return nil, ErrNotFound }

// Pin is a Lookup that only pins: until unpin is called (once) a Lookup of k succeeds, even if the
// record is deleted meanwhile. Errors: ErrNotFound.
func (d *Drive) Pin(k Key) (unpin func(), err error) { return nil, ErrNotFound }

// Delete removes records durably in one step. Their space returns after the grace and once no pin
// is left. Records that do not exist are no error. It works on a full drive.
func (d *Drive) Delete(keys ...Key) error { return ErrInvalid }

// Walk calls fn for every record, ascending by key. Records written or deleted meanwhile may or
// may not appear. An error of fn ends the walk and is returned.
func (d *Drive) Walk(ctx context.Context, fn func(Record) error) error { return ErrInvalid }

// Reclaim punches the deleted records whose grace is over and that nobody pins, and removes dead
// segments, now instead of at the next turn of the background work.
func (d *Drive) Reclaim(ctx context.Context) error { return ErrInvalid }

// Close seals the segment being written and closes the drive. All Writers must have ended.
// Locations stay readable until their Release.
func (d *Drive) Close() error { return nil }

// Writer writes one record. WriteAt may be called concurrently for disjoint pieces; Commit or
// Abort comes last, once.
type Writer struct{}

// WriteAt writes p at off of the payload and returns when the device has it (not yet durable). off
// must be a multiple of vfs.Alignment, and so must len(p) unless p ends the payload. Memory that is
// not aligned to vfs.Alignment is copied. The caller computes the block CRCs from the same memory.
func (w *Writer) WriteAt(p []byte, off int64) (int, error) { return 0, ErrInvalid }

// Commit writes header and footer, waits for an fdatasync that it shares with concurrent commits,
// and makes the record visible. A context that has ended before that fdatasync aborts instead. On
// any error the record is not visible, and its space is given back.
func (w *Writer) Commit(ctx context.Context, s Sums) error { return ErrInvalid }

// Abort gives the place back. After Commit it does nothing, so it may be deferred.
func (w *Writer) Abort() {}

// Location is a pinned record. Safe for concurrent use.
type Location struct{}

// Record describes it.
func (l *Location) Record() Record { return Record{} }

// ReadAt reads payload bytes [off, off+len(p)), which must lie inside the payload. The bytes are
// not verified here. Errors: ErrInvalid, those of the device, ErrCorrupt when the segment is gone.
func (l *Location) ReadAt(p []byte, off int64) (int, error) { return 0, ErrInvalid }

// BlockCRCs returns the CRC64NVMEs of blocks [first, first+n) from the verified footer, which is
// read once per Location. The slice must not be changed. Errors: ErrInvalid, ErrCorrupt.
func (l *Location) BlockCRCs(first, n int) ([]uint64, error) { return nil, ErrInvalid }

// Release drops the pin. No other call may be under way or follow.
func (l *Location) Release() {}
