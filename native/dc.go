package native

import "fmt"

// Reasons of an UnavailableError of Library.DC and Device.DC.
const (
	ReasonNoMlx5Headers = "no-mlx5-headers" // the program was built without infiniband/mlx5dv.h
	ReasonNoMlx5        = "no-mlx5"         // libmlx5.so.1 cannot be opened
	ReasonNoMlx5Symbol  = "no-mlx5-symbol"  // it, or libibverbs, is too old: a function is missing
	ReasonNoDC          = "no-dc"           // the adapter has no dynamically connected queue pairs
)

// PeerPort is where the packets of a DCI go.
type PeerPort struct {
	GID    [16]byte
	HasGID bool   // on Ethernet it must
	LID    uint16 // on InfiniBand
}

// Destination is the DCT that work requests of a DCI go to.
type Destination struct {
	// Address stays open until they have completed, or the DCI was reset or closed.
	Address *Address
	DCT     uint32 // number, 24 bits
	Key     uint64 // the DCT's access key. A secret: it must not be logged
}

// Format prints the destination without its key, whatever the verb.
func (d Destination) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "destination{dct %d}", d.DCT) }
