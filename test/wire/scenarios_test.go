package wire_test

// op is the S3 operation.
type op int

const (
	get op = iota
	put
	part
)

// sizes of payloads: more than an object that is kept in its record has, and of one buffer.
const (
	objectBytes = 40_000
	rangeOffset = 1_000
	rangeBytes  = 5_000
)

// scenario is one thing that a node can be made to answer.
type scenario struct {
	name string
	op   op

	size    int     // of the object (get) or the payload
	window  int     // of the token, where it is not the size
	ranged  bool    // get: rangeBytes at rangeOffset
	first   bool    // get: the first part, by its number, as a probe for the size
	extra   []field // signed headers besides the client's
	fault   fault
	busy    bool // all buffers are out
	garbage bool // the token is none
	ofi     bool // the token is of a kind that no fabric takes
	absent  bool // get: no such object; put: no such bucket; part: no such upload
	forged  bool // the signature is wrong
	exists  bool // put: the key has an object
	sum     string

	declined bool // RDMA is declined: the same over HTTP would work
}

// scenarios are all of them. Every answer of docs/wire.md §4 is there.
func scenarios() []scenario {
	none := []field{{"If-None-Match", "*"}}
	other := []field{{"If-Match", `"0123456789abcdef0123456789abcdef"`}}
	soon := []field{{"x-penstock-rdma-deadline-ms", "40"}}
	declines := func(o op, prefix string) []scenario {
		return []scenario{
			{name: prefix + "no-rail", op: o, size: objectBytes, fault: noRail, declined: true},
			{name: prefix + "no-session", op: o, size: objectBytes, fault: noSession, declined: true},
			{name: prefix + "unsupported", op: o, size: objectBytes, ofi: true, declined: true},
			{name: prefix + "busy", op: o, size: objectBytes, busy: true, declined: true},
		}
	}
	errors := func(o op, prefix string) []scenario {
		return []scenario{
			{name: prefix + "bad-token", op: o, size: objectBytes, garbage: true},
			{name: prefix + "outside", op: o, size: objectBytes, fault: outside},
			{name: prefix + "replayed", op: o, size: objectBytes, fault: replayed},
			{name: prefix + "not-granted", op: o, size: objectBytes, fault: notGranted},
			{name: prefix + "forged", op: o, size: objectBytes, forged: true},
			{name: prefix + "absent", op: o, size: objectBytes, absent: true},
			{name: prefix + "limit", op: o, size: objectBytes, fault: limited},
			{name: prefix + "halfway", op: o, size: objectBytes, fault: halfway},
			{name: prefix + "deadline", op: o, size: objectBytes, fault: stalls, extra: soon},
			{name: prefix + "no-answer", op: o, size: objectBytes, fault: lingers},
		}
	}
	all := []scenario{
		{name: "get", op: get, size: objectBytes},
		{name: "get-small", op: get, size: 100},
		{name: "get-roomy", op: get, size: objectBytes, window: objectBytes + 10_000},
		{name: "get-range", op: get, size: objectBytes, window: rangeBytes, ranged: true},
		{name: "get-first", op: get, size: objectBytes, window: objectBytes + 10_000, first: true},
		{name: "get-first-large", op: get, size: objectBytes, window: rangeBytes, first: true, declined: true},
		{name: "get-empty", op: get, size: 0, window: 4_096},
		{name: "get-too-large", op: get, size: objectBytes, window: objectBytes - 1, declined: true},
		{name: "get-not-modified", op: get, size: objectBytes, extra: none},
		{name: "get-precondition", op: get, size: objectBytes, extra: other},
		{name: "get-bad-range", op: get, size: rangeOffset, window: rangeBytes, ranged: true},
	}
	all = append(all, declines(get, "get-")...)
	all = append(all, errors(get, "get-")...)
	all = append(all,
		scenario{name: "put", op: put, size: objectBytes},
		scenario{name: "put-small", op: put, size: 100},
		scenario{name: "put-over", op: put, size: objectBytes, exists: true},
		scenario{name: "put-empty", op: put, size: 0},
		scenario{name: "put-precondition", op: put, size: objectBytes, exists: true, extra: none},
		scenario{name: "put-wrong-sum", op: put, size: objectBytes, exists: true, sum: "AAAAAAAAAAE="},
		scenario{name: "put-sum-of-nothing", op: put, size: objectBytes, exists: true, extra: []field{
			{"x-amz-sdk-checksum-algorithm", "CRC32"}, {"x-amz-checksum-crc32", "AAAAAA=="}}},
		scenario{name: "put-over-declined", op: put, size: objectBytes, exists: true, fault: noRail, declined: true},
		scenario{name: "put-over-halfway", op: put, size: objectBytes, exists: true, fault: halfway},
	)
	all = append(all, declines(put, "put-")...)
	all = append(all, errors(put, "put-")...)
	all = append(all, scenario{name: "part", op: part, size: objectBytes})
	all = append(all, declines(part, "part-")...)
	return append(all, errors(part, "part-")...)
}
