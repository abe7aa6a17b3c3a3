//go:build !cgo

package native

// DC makes dynamically connected queue pairs available. Errors: *UnavailableError, ErrClosed.
func (l *Library) DC() error { return ErrClosed }

// DC tells whether the adapter has dynamically connected queue pairs. Errors: *UnavailableError, ErrClosed.
func (d *Device) DC() error { return ErrClosed }

// Address is a peer's port as the adapter knows it.
type Address struct{}

// NewAddress makes an address. It may wait for the network.
func (p *PD) NewAddress(Path, PeerPort) (*Address, error) { return nil, ErrClosed }

// Close closes the address: see Destination.
func (a *Address) Close() error { return nil }

// DCI is a queue pair that sends to whatever DCT each Post names, and answers nobody.
type DCI struct{}

// NewDCI makes a DCI in the state QPReset.
func (p *PD) NewDCI(*CQ, PairOptions) (*DCI, error) { return nil, ErrClosed }

// Number is the DCI's number, 24 bits.
func (d *DCI) Number() uint32 { return 0 }

// State asks for the state.
func (d *DCI) State() (QPState, error) { return 0, ErrClosed }

// Connect takes it from QPReset to QPSend: Post may be called.
func (d *DCI) Connect(Path, Peer) error { return ErrClosed }

// Fail takes it to QPError from any state but QPReset: what is posted completes as StatusFlushed.
func (d *DCI) Fail() error { return ErrClosed }

// Reset takes it to QPReset from any state. Completions of it that were not polled may still come.
func (d *DCI) Reset() error { return ErrClosed }

// Post posts work requests to one destination, as QP.Post. Each has at least one byte.
func (d *DCI) Post(Destination, []Work) (n int, err error) { return 0, ErrClosed }

// Close destroys the DCI.
func (d *DCI) Close() error { return nil }

// DCT is a target of DCIs.
type DCT struct{}

// NewDCT makes a DCT with an access key; it answers nobody before Answer.
func (p *PD) NewDCT(*CQ, uint64) (*DCT, error) { return nil, ErrClosed }

// Answer lets peers reach it, and returns its number, 24 bits.
func (d *DCT) Answer(Path, int) (number uint32, err error) { return 0, ErrClosed }

// Close destroys the DCT: afterwards it answers nobody.
func (d *DCT) Close() error { return nil }
