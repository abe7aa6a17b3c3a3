package client

import "sync"

// Paths of a payload, as reported in Result.Path.
const (
	PathSHM  = "shm"
	PathRC   = "rc"
	PathTCP  = "tcp"
	PathDC   = "dc"
	PathHTTP = "http"
)

// Result says what a transfer did.
type Result struct {
	Bytes int64 // payload bytes moved
	// Path is "shm", "rc", "tcp", "dc" or "http". A transfer in several parts names a fabric only if that
	// fabric carried every part.
	Path string
	// Reason says why a preferred path did not carry the payload, or part of it: a short fixed word
	// from the server or one of the Reason constants. With Path "http" it is why the last fabric that
	// was tried did not; with Config.Fabric Auto and a fabric as Path, why one did not that comes before it: shm on the
	// node's own host, rc where this machine has adapters and the node offers it.
	// Empty when the preferred path carried everything.
	Reason      string
	FabricBytes int64 // of Bytes, how many went by a fabric
	Parts       int   // requests that carried payload
	// Verified says that every byte was compared with a checksum from the server (GET) or that the
	// server confirmed the checksum sent to it (PUT).
	Verified bool
	Object   ObjectInfo // of the object; after a PUT only ETag, Bytes and Checksum
}

// tally adds up the parts of one transfer. It is safe for concurrent use.
type tally struct {
	mu  sync.Mutex
	sum Result
}

func (t *tally) add(p Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.sum
	if s.Parts == 0 {
		*s = p
		s.Parts = 1
		return
	}
	s.Bytes += p.Bytes
	s.FabricBytes += p.FabricBytes
	s.Verified = s.Verified && p.Verified
	s.Parts++
	if p.Path != s.Path {
		s.Path = PathHTTP
	}
	if s.Reason == "" {
		s.Reason = p.Reason
	}
}

func (t *tally) result() Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sum
}
