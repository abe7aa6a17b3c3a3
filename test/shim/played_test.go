package shim_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock-store/penstock/internal/frame"
	"github.com/penstock-store/penstock/internal/token"
)

// played is a node that the test plays frame by frame, over tcp with one data connection.
type played struct {
	t     *testing.T
	url   string
	conns chan net.Conn
	conn  net.Conn
}

type secretKeeper struct{ secret [32]byte }

func (k secretKeeper) Secret(frame.HelloBody) ([32]byte, bool) { return k.secret, true }
func (k secretKeeper) Admit(frame.HelloBody) frame.Status      { return frame.StatusOK }

// newPlayed plays the control plane; greet is the server's side of the handshake.
func newPlayed(t *testing.T, greet func(net.Conn, [32]byte) error) *played {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &played{t: t, conns: make(chan net.Conn, 1)}
	secret := [32]byte{4, 5, 6}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return // the end of the test
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		if err := greet(conn, secret); err != nil {
			_ = conn.Close()
			return
		}
		s.conns <- conn
	}()
	node := frame.NodeInfo{
		Version: 1, Fabrics: []frame.FabricInfo{{Name: "tcp", Network: "tcp", Address: l.Addr().String(), Up: true}},
		Limits: frame.ControlLimits{DeadlineMillis: 1000},
	}
	offer := frame.SessionReply{
		Session: [16]byte{7}, Secret: token.SecretFrom(secret), Fabric: "tcp", Network: "tcp", Address: l.Addr().String(),
	}
	listing, listErr := json.Marshal(node)
	session, err := offer.Encode()
	if err != nil || listErr != nil {
		t.Fatal(err, listErr)
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = w.Write(session)
			return
		}
		_, _ = w.Write(listing)
	}))
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

// honestly is the handshake of a server that knows the secret.
func honestly(conn net.Conn, secret [32]byte) error {
	_, err := frame.Accept(conn, secretKeeper{secret}, frame.ReadyBody{
		RegionBytes: 1 << 40, Regions: 9, Conns: 1, Payload: frame.MaxPayload, IdleMillis: 60_000,
	})
	return err
}

func (s *played) environment() []string {
	return []string{"AWS_ENDPOINT_URL=" + s.url, "AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=secret",
		"PENSTOCK_CUOBJ_FABRIC=tcp"}
}

func (s *played) send(h frame.Header, body []byte) {
	_ = frame.WriteFrame(s.conn, h, body) // the client may have closed already: it noticed the lie
}

// receive returns the next frame; false: the client has ended the session.
func (s *played) receive() (frame.Header, bool) {
	var b [frame.HeaderBytes]byte
	h, err := frame.ReadHeader(s.conn, &b)
	if err != nil {
		return h, false
	}
	_, err = io.CopyN(io.Discard, s.conn, int64(h.Length))
	return h, err == nil
}

func (s *played) expect(typ frame.Type) {
	s.t.Helper()
	if h, ok := s.receive(); !ok || h.Type != typ {
		s.t.Errorf("frame of type %d (%v), want %d", h.Type, ok, typ)
	}
}

// token has the driver make one over 1,000 bytes at 100, and returns the START of a server that obeys.
func (s *played) token(d *driver, put bool) (string, frame.Header) {
	s.t.Helper()
	start := frame.Header{Type: frame.Start, Status: frame.StatusGet, ID: 1, Size: 1000}
	direction := 0
	if put {
		start.Status, direction = frame.StatusPut, 1
	}
	d.tell("token 1 1000 100 %d", direction)
	h, ok := s.receive()
	if !ok || h.Type != frame.Region || h.Size != 1000 {
		s.t.Fatalf("announced by %+v", h)
	}
	s.send(frame.Header{Type: frame.RegionOK, Region: h.Region}, nil)
	text := d.hear()
	parsed, err := token.Parse(text)
	if err != nil {
		s.t.Fatalf("token: %v", err)
	}
	start.Region = parsed.Region
	return text, start
}

// put has the token taken back, and answers as a server does, unless it is mute. No payload may come: whatever the
// server asked for, it had no right to.
func (s *played) put(d *driver, text string, mute bool) {
	s.t.Helper()
	d.tell("put %s", text)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			h, ok := s.receive()
			switch {
			case !ok:
				return
			case h.Type == frame.Payload:
				s.t.Error("the client gave bytes away")
			case h.Type == frame.Forget && !mute:
				s.send(frame.Header{Type: frame.Forgotten, Region: h.Region}, nil)
				return
			}
		}
	}()
	if got := d.hear(); got != "0" {
		s.t.Errorf("put: %s", got)
	}
	<-done
}

// TestLyingServer: whatever a server sends, it reads and writes nothing but the window of a running request, in its
// direction; and the memory comes back. Oracle: a pattern over the window and around it.
func TestLyingServer(t *testing.T) {
	binary := program(t, "driver", "address,undefined")
	data := func(id, off uint64) frame.Header { return frame.Header{Type: frame.Data, ID: id, Offset: off} }
	read := func(off, size uint64) frame.Header {
		return frame.Header{Type: frame.Read, ID: 1, Offset: off, Size: size}
	}
	bytes := make([]byte, 10)
	denied := func(change func(*frame.Header)) func(*played, frame.Header) {
		return func(s *played, start frame.Header) {
			change(&start)
			s.send(start, nil)
			s.expect(frame.Deny)
			s.send(data(start.ID, 0), bytes)
			s.send(frame.Header{Type: frame.Done, ID: start.ID}, nil)
			s.expect(frame.Ack)
		}
	}
	begun := func(h frame.Header, body []byte) func(*played, frame.Header) {
		return func(s *played, start frame.Header) {
			s.send(start, nil)
			s.send(h, body)
		}
	}
	for name, c := range map[string]struct {
		put, mute bool
		lie       func(s *played, start frame.Header)
		after     func(s *played, start frame.Header) // the token was taken back
	}{
		"longer":              {lie: denied(func(h *frame.Header) { h.Size++ })},
		"beyond":              {lie: denied(func(h *frame.Header) { h.Offset = 1 })},
		"far beyond":          {lie: denied(func(h *frame.Header) { h.Offset = 1 << 62 })},
		"other direction":     {lie: denied(func(h *frame.Header) { h.Status = frame.StatusPut })},
		"other number":        {lie: denied(func(h *frame.Header) { h.Region += 1 << 32 })},
		"other region":        {lie: denied(func(h *frame.Header) { h.Region++ })},
		"data outside":        {lie: begun(data(1, 991), bytes)},
		"data far outside":    {lie: begun(data(1, 1<<62), bytes)},
		"data of nothing":     {lie: func(s *played, _ frame.Header) { s.send(data(9, 0), bytes) }},
		"data into a put":     {put: true, lie: begun(data(1, 0), bytes)},
		"read of a get":       {lie: begun(read(0, 10), nil)},
		"read outside":        {put: true, lie: begun(read(991, 10), nil)},
		"read far outside":    {put: true, lie: begun(read(1<<62, 10), nil)},
		"read of no bytes":    {put: true, lie: begun(read(0, 0), nil)},
		"read without bounds": {put: true, lie: begun(read(0, 1<<62), nil)},
		"number twice":        {lie: func(s *played, h frame.Header) { s.send(h, nil); s.send(h, nil) }},
		"closed":              {lie: func(s *played, _ frame.Header) { s.send(frame.Header{Type: frame.Closed}, nil) }},
		"frame of a client":   {lie: func(s *played, _ frame.Header) { s.send(frame.Header{Type: frame.Ping}, nil) }},
		"half a frame":        {lie: func(s *played, _ frame.Header) { _, _ = s.conn.Write(bytes); _ = s.conn.Close() }},
		"no frame":            {lie: func(s *played, _ frame.Header) { _, _ = s.conn.Write(make([]byte, 40)) }},
		"body too long": {lie: func(s *played, start frame.Header) {
			var b [frame.HeaderBytes]byte
			frame.Header{Type: frame.Data, ID: 1, Length: frame.MaxPayload + 1}.Encode(b[:])
			s.send(start, nil)
			_, _ = s.conn.Write(b[:])
		}},
		"second start": {lie: func(s *played, start frame.Header) {
			s.send(start, nil)
			start.ID = 2
			s.send(start, nil)
			s.expect(frame.Deny)
			s.send(data(2, 0), bytes)
			s.send(frame.Header{Type: frame.Done, ID: 1}, nil)
			s.expect(frame.Ack)
		}},
		"half of the data": {mute: true, lie: func(s *played, start frame.Header) {
			var b [frame.HeaderBytes]byte
			frame.Header{Type: frame.Data, ID: 1, Length: 500}.Encode(b[:])
			s.send(start, nil)
			_, _ = s.conn.Write(append(b[:], pattern(1, 200)[100:]...)) // what is there already
		}, after: func(s *played, _ frame.Header) { _, _ = s.conn.Write(make([]byte, 400)) }},
		"late": {lie: func(*played, frame.Header) {}, after: func(s *played, start frame.Header) {
			s.send(start, nil)
			s.expect(frame.Deny)
			s.send(data(1, 0), bytes)
			s.send(frame.Header{Type: frame.Done, ID: 1}, nil)
			s.expect(frame.Ack)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPlayed(t, honestly)
			d := newDriver(t, binary, s.environment()...)
			d.memory(1, 2000, 1)
			s.conn = <-s.conns
			defer s.conn.Close()
			text, start := s.token(d, c.put)
			c.lie(s, start)
			began := time.Now()
			s.put(d, text, c.mute)
			if took := time.Since(began); took > 8*time.Second { // 1 + 2 for FORGOTTEN, 3 for the fence
				t.Errorf("put took %v", took)
			}
			if c.after != nil {
				c.after(s, start)
			}
			d.want("same", "check 1 0 2000 1")
			d.want("0", "deregister 1")
			d.want("0", "free 1")
		})
	}
}

// TestServerThatReadsNothing: a payload that the server asked for and does not take holds up nobody beyond the deadline
// of his own question.
func TestServerThatReadsNothing(t *testing.T) {
	const reads = 8 // more than sockets hold
	s := newPlayed(t, honestly)
	d := newDriver(t, program(t, "driver", "address,undefined"), s.environment()...)
	d.memory(1, frame.MaxPayload, 1)
	s.conn = <-s.conns
	defer s.conn.Close()
	d.tell("token 1 %d 0 1", frame.MaxPayload)
	h, _ := s.receive()
	s.send(frame.Header{Type: frame.RegionOK, Region: h.Region}, nil)
	text := d.hear()
	parsed, err := token.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s.send(frame.Header{
		Type: frame.Start, Status: frame.StatusPut, ID: 1, Region: parsed.Region, Size: frame.MaxPayload}, nil)
	for range reads {
		s.send(frame.Header{Type: frame.Read, ID: 1, Size: frame.MaxPayload}, nil)
	}
	s.expect(frame.Payload) // now it writes
	began := time.Now()
	d.want("0", "put %s", text)
	if took := time.Since(began); took > 8*time.Second { // 1 + 2 for FORGOTTEN, 3 for the fence
		t.Errorf("put took %v", took)
	}
	d.want("0", "deregister 1")
	d.want("0", "free 1")
}

// TestServerWithoutProof: who does not know the session's secret gets no memory, not even its size.
func TestServerWithoutProof(t *testing.T) {
	s := newPlayed(t, func(conn net.Conn, _ [32]byte) error {
		var b [frame.HeaderBytes]byte
		if _, err := frame.ReadHeader(conn, &b); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, conn, frame.HelloBytes); err != nil {
			return err
		}
		challenge := make([]byte, frame.NonceBytes)
		if err := frame.WriteFrame(conn, frame.Header{Type: frame.Challenge}, challenge); err != nil {
			return err
		}
		if _, err := frame.ReadHeader(conn, &b); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, conn, frame.ProofBytes); err != nil {
			return err
		}
		return frame.WriteFrame(conn, frame.Header{Type: frame.Ready}, make([]byte, frame.ReadyBytes))
	})
	d := newDriver(t, program(t, "driver", "address,undefined"), s.environment()...)
	if got := d.ask("available"); !strings.HasPrefix(got, "0 ") || !strings.Contains(got, "did not prove") {
		t.Errorf("available: %s", got)
	}
	s.conn = <-s.conns
	defer s.conn.Close()
	if h, ok := s.receive(); ok {
		t.Errorf("the client goes on with a frame of type %d", h.Type)
	}
}
