package gateway

import (
	"net/http"
	"time"
)

// limitBody says how the body that an error leaves unread is dealt with; it comes before the answer's header. Usually
// net/http reads it first. A body that comes with a token may never come: its client announced the payload, keeps it in
// its memory, and waits for the answer. So that answer goes first, and what the client sends anyhow is read after it.
func (c *call) limitBody() {
	if c.r.ContentLength == 0 {
		return
	}
	ctl := http.NewResponseController(c.w)
	k, err := carrierOf(c.r.Header)
	// A client that expects a word before it sends the body gets the answer as that word.
	if (k != nil || err != nil) && c.r.Header.Get("Expect") == "" && ctl.EnableFullDuplex() == nil {
		c.w.Header()["Connection"] = []string{"close"}
		c.early = true
		return
	}
	_ = ctl.SetReadDeadline(time.Now().Add(drainWait)) // an error means that there is no connection to wait for
}

// drainWait bounds how long the rest of a body that an error left unread is read.
const drainWait = 5 * time.Second

// silence is how long a client that got its answer early may send nothing of its body: more than a lost packet takes
// to be sent again. From then on it is taken for one that keeps the body.
const silence = 500 * time.Millisecond

// drainEarly reads a body whose answer is out. Without that the close of the connection would be a reset, which
// can take the answer away from a client that first sends everything and then reads.
func (c *call) drainEarly() {
	if !c.early {
		return
	}
	ctl := http.NewResponseController(c.w)
	if ctl.Flush() != nil {
		return
	}
	p := make([]byte, 16<<10)
	for end := time.Now().Add(drainWait); ; {
		wait := min(silence, time.Until(end))
		if wait <= 0 || ctl.SetReadDeadline(time.Now().Add(wait)) != nil {
			return
		}
		if _, err := c.r.Body.Read(p); err != nil {
			return
		}
	}
}
