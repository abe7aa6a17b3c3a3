// Package hostile attacks a whole node with clients that die, stall, lie, forge and send nonsense.
//
// Called by: go test.
//
// The node is a real one (server, drive, metadata, fabrics, sockets) in this process, on a file system
// that tests can make hang. The attackers speak raw sockets and hand-made frames, and are processes of
// their own where they have to die. After each attack the oracle is always the same: the node's own
// counters of sessions, regions, mapped bytes, windows, buffers, requests and connections, the sockets
// and mappings of the process, and its goroutines are back where they were; a neighbour moves bytes
// over every path; nothing was stored that was not acknowledged; nothing secret was logged.
//
// What it does not do: crashes of the node (test/kill), one fabric alone (fabrictest), one package's
// parsers (their fuzz targets).
package hostile
