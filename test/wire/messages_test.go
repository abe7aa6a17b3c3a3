package wire_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-store/penstock/internal/fabric"
)

// Prepare implements fabric.Exchange.
func (m *memory) Prepare(_ context.Context, p fabric.Preparation) (fabric.Prepared, error) {
	err := map[fault]error{noRail: fabric.ErrNoFabric, notGranted: fabric.ErrNotGranted,
		limited: fabric.ErrLimit}[m.now()]
	if err != nil {
		_ = p.Held.Close() // never fails
		return fabric.Prepared{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sessions == nil {
		m.sessions = map[[16]byte]fabric.Preparation{}
	}
	m.prepared++
	made := fabric.Prepared{ID: [16]byte{1, 2, m.prepared}, QPN: 0x77, PSN: 0xabc, GID: [16]byte{10: 0xff,
		11: 0xff, 12: 10},
		Port: 1}
	if p.Direction == fabric.ForPut {
		made.Addr, made.RKey = 0x7e00_0000_0000, 0x99
	}
	m.sessions[made.ID] = p
	return made, nil
}

// Take implements fabric.Exchange.
func (m *memory) Take(id [16]byte, who string, r fabric.Readiness) (*fabric.Taken, error) {
	f := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.sessions[id]
	switch {
	case !ok, f == noSession, f == replayed: // it has ended, or a copy of the message came first
		return nil, fabric.ErrNoSession
	case f == outside, p.Principal != who, p.Cookie != r.Cookie, p.Token.QPN != r.QPN,
		r.Addr < memoryBase, r.Addr-memoryBase+uint64(p.Bytes) > uint64(len(m.bytes)):
		return nil, fabric.ErrNotGranted
	}
	delete(m.sessions, id)
	life := 8 * time.Second
	if f == stalls {
		life = 40 * time.Millisecond
	}
	w := &toldWindow{window: window{m: m, base: int64(r.Addr - memoryBase), n: p.Bytes}}
	return &fabric.Taken{Remote: w, Held: p.Held, Direction: p.Direction, Bytes: p.Bytes,
		Deadline: time.Now().Add(life), Cookie: p.Cookie, Finish: func() { _ = p.Held.Close() }}, nil
}

// Cancel implements fabric.Exchange.
func (m *memory) Cancel(_ context.Context, id [16]byte, who string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.sessions[id]; ok && p.Principal == who {
		_ = p.Held.Close() // never fails
		delete(m.sessions, id)
	}
	return nil
}

// toldWindow is a window whose client is told when all bytes have moved.
type toldWindow struct {
	window
	aborted bool
}

func (w *toldWindow) Abort() { w.aborted = true }

func (w *toldWindow) Close() error {
	err := w.window.Close()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if err == nil && !w.aborted {
		w.m.immediates++
	}
	return err
}

// hipSpeaker is how one client forms the messages of hipobj-rc-v2.
type hipSpeaker struct {
	service string
	hash    string // sent; "": none is
	title   bool   // header names as Go writes them
	padded  bool   // numbers of fixed width
	length  bool   // Content-Length is signed
	offset  bool   // it reads from an offset
	cancels bool   // after every session, also one that is done
}

const (
	hipCookie = "1a2b3c4d"
	hipPath   = "/.hipobj-rc/"
)

// message forms and signs one; the fields are those of its kind. Host is without a port.
func (h *hipSpeaker) message(a *ask, path string, fields []field) *raw {
	r := &raw{method: "POST", path: hipPath + path}
	host, _, _ := net.SplitHostPort(a.host)
	all := append([]field{{"host", host}, {"x-amz-date", a.stamp()}}, fields...)
	if h.hash != "" {
		all = append(all, field{"x-amz-content-sha256", h.hash})
	}
	if h.length {
		all = append(all, field{"content-length", "0"})
	}
	for i, f := range all {
		if h.title { // as a map gives them: in no order
			f = all[(i*5+3)%len(all)]
			if len(all)%5 == 0 {
				f = all[i]
			}
			f.name = http.CanonicalHeaderKey(f.name)
		}
		r.add(f.name, f.value)
	}
	if path == "prepare" {
		r.with(a.extra)
	}
	s := signing{id: a.id, secret: a.secret, region: "us-east-1", service: h.service, hash: emptyHash,
		stamp: a.stamp()}
	r.add("Authorization", r.sign(s))
	if h.length {
		r.add("Connection", "keep-alive")
	} else {
		r.add("content-length", "0")
	}
	return r
}

func (h *hipSpeaker) hex(width int, v uint64) string {
	if h.padded {
		return fmt.Sprintf("%0*x", width, v)
	}
	return strconv.FormatUint(v, 16)
}

// pair are the headers of the client's queue pair and memory.
func (h *hipSpeaker) pair(a *ask) []field {
	return []field{{"x-amz-rdma-mr-addr", h.hex(16, a.addr)}, {"x-amz-rdma-mr-rkey", h.hex(8, 0x01f2e973)},
		{"x-amz-rdma-qpn", h.hex(16, 0x7a03)}}
}

// prepare forms the first message, of the headers in the order of their names.
func (h *hipSpeaker) prepare(a *ask) *raw {
	op, target, token := "PUT", "/"+a.bucket+"/"+a.key, hipToken(0, 0)
	switch {
	case a.op == get:
		op = "GET"
	case a.op == part:
		target += "?partNumber=1&uploadId=" + a.uploadID
	}
	if a.garbage || a.ofi {
		token = a.token
	}
	fields := []field{{"x-amz-rdma-cookie", hipCookie}}
	if !h.padded { // the data client names them here, too
		fields = append(fields, h.pair(a)[:2]...)
	}
	if a.ranged && h.offset {
		fields = append(fields, field{"x-amz-rdma-offset", strconv.Itoa(rangeOffset)})
	}
	fields = append(fields, field{"x-amz-rdma-op", op}, field{"x-amz-rdma-protocol", "hipobj-rc-v2"},
		field{"x-amz-rdma-psn", "000001"})
	if !h.padded {
		fields = append(fields, h.pair(a)[2])
	}
	return h.message(a, "prepare", append(fields, field{"x-amz-rdma-size", strconv.FormatInt(a.window, 10)},
		field{"x-amz-rdma-target", target}, field{"x-amz-rdma-token", token}))
}

// talk makes one transfer. Each message has a connection of its own.
func (h *hipSpeaker) talk(tr *trial) answer {
	t, a := tr.b.t, tr.ask
	first := exchange(t, tr.b.host, h.prepare(a))
	session := first.header.Get("X-Amz-Rdma-Session")
	if first.status != 200 || session == "" {
		first.first = &first
		return first
	}
	fields := append([]field{{"x-amz-rdma-cookie", hipCookie}}, h.pair(a)...)
	fields = append(fields, field{"x-amz-rdma-protocol", "hipobj-rc-v2"}, field{"x-amz-rdma-session", session})
	last := exchange(t, tr.b.host, h.message(a, "ready", fields))
	tr.b.memory.mu.Lock()
	last.first, last.immediate = &first, tr.b.memory.immediates == 1
	tr.b.memory.mu.Unlock()
	if h.cancels {
		gone := exchange(t, tr.b.host, h.message(a, "cancel", []field{{"x-amz-rdma-protocol", "hipobj-rc-v2"},
			{"x-amz-rdma-session", session}, {"x-amz-rdma-cookie", "00000000"}}))
		if gone.status != 204 {
			t.Errorf("%s: CANCEL is answered %d", tr.name, gone.status)
		}
	}
	return last
}

// connects tells whether a client can connect its queue pair by the answer to its first message.
func (r *answer) connects() bool {
	if r.first == nil || r.first.status != 200 {
		return false
	}
	code, text, ok := strings.Cut(r.first.reply(), ":")
	qpn, err := strconv.ParseUint(r.first.header.Get("X-Amz-Rdma-Qpn"), 16, 32)
	little := fmt.Sprintf("%02x%02x%02x%02x", byte(qpn), byte(qpn>>8), byte(qpn>>16), byte(qpn>>24))
	return ok && err == nil && code == "200" && len(text) == 88 && text[:2] == "01" && text[2:10] == little &&
		strings.Trim(text[10:42], "0") != ""
}

// checkMessages: the rules of docs/wire.md §10c that no client is asked about.
func (tr *trial) checkMessages(r *answer) {
	t := tr.b.t
	t.Helper()
	if r.closed {
		return
	}
	moved := strconv.FormatInt(tr.window, 10)
	done := r.header.Get("X-Amz-Rdma-Cookie") == hipCookie && r.header.Get("X-Amz-Rdma-Bytes-Transferred") == moved &&
		r.header.Get("X-Amz-Rdma-Protocol") == "hipobj-rc-v2" && r.etag() != "" &&
		r.header.Get("X-Amz-Rdma-Etag") == r.etag() && len(r.body) == 0 && r.immediate
	if r.ok() && !done {
		t.Errorf("%s: FINAL %d with %v", tr.name, r.status, r.header)
	}
	none := r.etag() == "" || r.status == http.StatusNotModified
	if !r.ok() && (!none || r.header.Get("X-Amz-Rdma-Cookie") != "" || r.header.Get("X-Amz-Rdma-Session") != "") {
		t.Errorf("%s: error %d with %v", tr.name, r.status, r.header)
	}
	want := map[string]int{"no-rail": 501, "no-session": 409, "unsupported": 400, "busy": 503, "bad-token": 400,
		"outside": 403, "replayed": 409, "not-granted": 403, "forged": 403, "absent": 404, "limit": 503,
		"halfway":  500,
		"deadline": 408, "too-large": 416, "bad-range": 416}
	_, kind, _ := strings.Cut(tr.name, "-")
	if status := want[kind]; status != 0 && r.status != status {
		t.Errorf("%s: status %d, want %d", tr.name, r.status, status)
	}
	if (r.status == 501) != (r.header.Get("X-Amz-Rdma-Protocol-Status") == "unsupported") {
		t.Errorf("%s: status %d, protocol status %q", tr.name, r.status, r.header.Get("X-Amz-Rdma-Protocol-Status"))
	}
}
