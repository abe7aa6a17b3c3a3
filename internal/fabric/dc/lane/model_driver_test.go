package lane

import "bytes"

// do carries out what the Core asked for, and checks it against the model's books.
func (m *model) do(actions []Action) {
	for _, a := range actions {
		switch a.Kind {
		case Post:
			m.post(a)
		case Reset:
			m.reset(a.Lane)
		case Retire:
			m.retire(a.Lane)
		case Release:
			m.release(m.index(a.Transfer))
		case Linger:
			m.at(m.now+linger, event{kind: evLingered, n: m.index(a.Transfer)})
		case Finish:
			m.finish(m.index(a.Transfer), a.Result)
		default:
			m.blame("an action of kind %d", a.Kind)
		}
	}
}

func (m *model) index(id uint64) int {
	i := int(id) - 100
	if i < 0 || i >= len(m.moves) {
		m.blame("transfer %d does not exist", id)
		return 0
	}
	return i
}

// post checks a post: one transfer on one lane, in time, in the window, in the segments, within the limits.
func (m *model) post(a Action) {
	i := m.index(a.Transfer)
	v, d := &m.moves[i], &m.dcis[a.Lane]
	switch {
	case d.owner != -1 && d.owner != i:
		m.blame("DCI %d used by two transfers: %d and %d", a.Lane, d.owner, i)
	case v.lane != -1 && v.lane != a.Lane:
		m.blame("transfer %d posts on two DCIs", i)
	case v.released || v.finished:
		m.blame("post for transfer %d, which was released", i)
	case m.now > v.stop:
		m.blame("post for transfer %d after its stop at %d", i, v.stop)
	case d.stopping || d.failed && d.rogue:
		m.blame("post on DCI %d, which is being reset", a.Lane)
	case d.asked:
		m.blame("two posts on DCI %d at once", a.Lane)
	case len(a.Works) == 0 || len(a.Works) > m.o.Batch:
		m.blame("post of %d", len(a.Works))
	}
	d.owner, v.lane, d.asked = i, a.Lane, true
	switch ofPeer, ofOwner := m.holds(v); {
	case ofPeer > m.o.PerPeer:
		m.blame("%d DCIs of one peer", ofPeer)
	case ofOwner > m.o.PerOwner:
		m.blame("%d DCIs of one owner", ofOwner)
	}
	for _, w := range a.Works {
		m.check(v, i, w)
		d.posting = append(d.posting, job{id: w.ID, move: i, work: w, gen: d.gen})
	}
	m.inCQ += len(a.Works)
	if len(d.owned)+len(d.posting) > m.o.Depth {
		m.blame("DCI %d has %d work requests of %d", a.Lane, len(d.owned)+len(d.posting), m.o.Depth)
	}
	if m.inCQ > m.o.Credits {
		m.blame("%d work requests for a completion queue of %d", m.inCQ, m.o.Credits)
	}
	takes := m.rng.Int64N(postTime)
	returns := takes + m.rng.Int64N(postTime-takes)
	failed := m.chance(2)
	if !failed || m.rng.IntN(2) == 0 { // of a failed call it is not known what the adapter has
		m.at(m.now+takes, event{kind: evTaken, n: a.Lane})
	} else {
		m.own(d)
		d.sq = nil
	}
	m.at(m.now+returns, event{kind: evPosted, n: a.Lane, well: !failed})
}

// holds counts the DCIs of a transfer's peer and of its owner.
func (m *model) holds(v *move) (ofPeer, ofOwner int) {
	for n := range m.dcis {
		if o := m.dcis[n].owner; o >= 0 {
			if m.moves[o].Peer == v.Peer {
				ofPeer++
			}
			if m.moves[o].Owner == v.Owner {
				ofOwner++
			}
		}
	}
	return ofPeer, ofOwner
}

// serves tells whether there is a DCI that the Core has, or will have when the driver returns in its time.
func (m *model) serves() bool {
	for n := range m.dcis {
		if d := &m.dcis[n]; !d.dead && !d.late {
			return true
		}
	}
	return false
}

// waits checks that nobody waits for nothing: without a DCI, or beside one that is idle.
func (m *model) waits() {
	c := m.core.Counts()
	if c.Waiting > 0 && !m.serves() {
		m.blame("%d transfers wait, and there is no DCI", c.Waiting)
	}
	if c.Waiting == 0 || c.Idle == 0 {
		return
	}
	unposted, blocked := 0, 0
	for i := range m.moves {
		v := &m.moves[i]
		if !v.begun || v.released || v.lane != -1 {
			continue
		}
		unposted++
		if ofPeer, ofOwner := m.holds(v); ofPeer >= m.o.PerPeer || ofOwner >= m.o.PerOwner {
			blocked++
		}
	}
	// Those that have a DCI and no place in the completion queue yet are not told apart from those that wait.
	if unposted == c.Waiting && blocked < unposted {
		m.blame("a transfer waits beside %d DCIs that are idle", c.Idle)
	}
}

func (m *model) check(v *move, i int, w Work) {
	if w.Remote < v.Window.Addr || w.Length < 1 || w.Remote+uint64(w.Length) > v.Window.Addr+v.Window.Size {
		m.blame("transfer %d: post outside its window: %+v", i, w)
	}
	if w.Length > m.o.Piece && w.Segment >= 0 {
		m.blame("transfer %d: a piece of %d", i, w.Length)
	}
	if w.Segment == -1 && (!w.Read || w.Length != 1) || w.Segment < -1 || w.Segment >= len(v.Segments) ||
		w.Segment >= 0 && (w.Read != v.Read || w.Offset < 0 || w.Offset+w.Length > v.Segments[w.Segment]) {
		m.blame("transfer %d: post outside its segments: %+v", i, w)
	}
}

// own books what is being posted as the adapter's.
func (m *model) own(d *dci) {
	d.owned = append(d.owned, d.posting...)
	d.posting = nil
}

func (m *model) taken(n int) {
	d := &m.dcis[n]
	d.sq = append(d.sq, d.posting...)
	m.own(d)
	m.go1(n)
}

// go1 lets the adapter go on with a DCI.
func (m *model) go1(n int) {
	d := &m.dcis[n]
	if d.running || d.hung || len(d.sq) == 0 {
		return
	}
	d.running = true
	m.at(m.now+m.some(8), event{kind: evExecute, n: n, job: job{gen: d.gen}})
}

// execute does the oldest work request of a DCI, or what goes wrong with it.
func (m *model) execute(e event) {
	d := &m.dcis[e.n]
	if e.job.gen != d.gen {
		return
	}
	d.running = false
	if len(d.sq) == 0 {
		return
	}
	if !d.failed && m.chance(3) { // the peer is not ready, or a packet was lost
		m.go1(e.n)
		return
	}
	j := d.sq[0]
	d.sq = d.sq[1:]
	j.bytes = j.work.Length
	arrival := m.now
	switch {
	case d.failed:
		j.status = StatusFlushed
	case m.chance(0.7):
		j.status = StatusDenied
	case m.chance(0.7):
		j.status = StatusLost // after retries, or at once
		if m.rng.IntN(2) == 0 {
			arrival = m.packet(j)
		}
	case m.chance(0.3):
		j.status = StatusLocal
	case m.chance(0.3):
		d.hung = true
		return
	case m.chance(0.5) && j.work.Read:
		j.bytes--
		arrival = m.packet(j)
	default:
		arrival = m.packet(j)
	}
	if j.status != StatusOK {
		d.failed = true
	}
	m.completion(e.n, j, arrival)
	m.go1(e.n)
}

// completion puts a completion on its way, or loses it, or lets it come twice.
func (m *model) completion(n int, j job, arrival int64) {
	if j.status == StatusOK && !j.work.Signal || m.chance(0.7) {
		return
	}
	d := &m.dcis[n]
	last := max(d.complete, arrival) + m.some(4)
	if m.rng.IntN(8) == 0 { // nobody polls for a while
		last += m.some(30)
	}
	d.complete = last
	m.at(last, event{kind: evComplete, n: n, job: j})
	if m.chance(0.7) {
		m.at(last+m.rng.Int64N(200), event{kind: evComplete, n: n, job: j})
	}
}

// packet sends a work request's bytes. What has left arrives, whatever becomes of its DCI; but a READ's answer is taken
// by no DCI that was reset meanwhile. It returns when they arrive.
func (m *model) packet(j job) int64 {
	v := &m.moves[j.move]
	if v.released {
		m.blame("the adapter uses the buffers of transfer %d, which were released", j.move)
	}
	v.inFlight++
	if !j.work.Read {
		copy(j.data[:], v.piece(j.work))
	}
	d := &m.dcis[v.lane]
	d.arrival = max(d.arrival+1, m.now+m.some(packetTime)) // at most packetTime after now: a tick is between two
	m.at(d.arrival, event{kind: evArrive, n: v.lane, job: j})
	return d.arrival
}

// arrive is an access to the client's memory: in the window, before the deadline and before the transfer's end.
func (m *model) arrive(e event) {
	j, v := e.job, &m.moves[e.job.move]
	v.inFlight--
	from := int(j.work.Remote) - base
	for k := range j.work.Length {
		if m.owner[from+k] != j.move {
			m.blame("transfer %d: access to memory of %d", j.move, m.owner[from+k])
			return
		}
	}
	if m.now > v.deadline && !v.stuck {
		m.blame("transfer %d: access at %d, after its deadline %d", j.move, m.now, v.deadline)
	}
	if v.finished {
		m.blame("transfer %d: access after its end", j.move)
	}
	there := m.memory[from:][:j.work.Length]
	switch {
	case j.work.Segment == -1:
		v.proved = v.moved == len(v.local)
	case j.work.Read:
		if v.lane < 0 || m.dcis[v.lane].gen != j.gen {
			return
		}
		if v.released {
			m.blame("transfer %d: a READ writes into a buffer that was released", j.move)
			return
		}
		copy(v.piece(j.work), there[:j.bytes])
		v.moved += j.bytes
	default:
		copy(there, j.data[:])
		v.moved += j.work.Length
	}
}

// piece is a work request's local memory.
func (v *move) piece(w Work) []byte {
	at := w.Offset
	for _, n := range v.Segments[:w.Segment] {
		at += n
	}
	return v.local[at:][:w.Length]
}

// polled gives a completion to the Core. With it the adapter lets go of the work request and those before it.
func (m *model) polled(e event) {
	d := &m.dcis[e.n]
	for k, o := range d.owned {
		if o.id == e.job.id && o.gen == d.gen && e.job.gen == d.gen {
			if e.job.status == StatusOK && e.job.bytes == o.work.Length && m.inOrder(d.owned[:k]) {
				m.inCQ -= k + 1
				d.owned = d.owned[k+1:]
			}
			break
		}
	}
	m.do(m.core.Completed(e.job.id, e.job.status, e.job.bytes))
}

// inOrder tells whether none of these should have had a completion of its own before.
func (m *model) inOrder(earlier []job) bool {
	for _, o := range earlier {
		if o.work.Signal {
			return false
		}
	}
	return true
}

func (m *model) reset(n int) {
	d := &m.dcis[n]
	if d.asked {
		m.blame("reset of DCI %d while a post is under way", n)
	}
	if d.stopping {
		m.blame("two resets of DCI %d at once", n)
	}
	d.stopping = true
	m.call(n)
	fenced := !m.chance(3)
	stops := m.some(resetTime)
	returns := stops
	if m.chance(3) {
		returns += m.rng.Int64N(slowReset)
	}
	if fenced {
		m.at(m.now+stops, event{kind: evQuiet, n: n})
	} else if d.owner >= 0 {
		m.moves[d.owner].stuck = true // the adapter's doing
	}
	m.at(m.now+returns+1, event{kind: evReset, n: n, well: fenced})
}

// call notes a call of the driver; the Core is told when it takes long.
func (m *model) call(n int) {
	d := &m.dcis[n]
	d.calls++
	d.called = true
	m.at(m.now+lateTime, event{kind: evLate, n: n, job: job{gen: d.calls}})
}

func (m *model) late(e event) {
	d := &m.dcis[e.n]
	if e.job.gen != d.calls || !d.called && m.rng.IntN(4) > 0 { // told late sometimes
		return
	}
	d.late = d.called
	m.do(m.core.Late(e.n))
}

// returned says that a call of the driver has.
func (m *model) returned(n int) { m.dcis[n].called, m.dcis[n].late = false, false }

func (m *model) retire(n int) {
	m.call(n)
	takes := m.some(resetTime)
	if m.chance(5) {
		takes += m.rng.Int64N(slowReset)
	}
	m.destroy(n, takes, !m.chance(20))
}

// destroy has the driver try to destroy a DCI, for so long. As with a reset, the adapter stops before it returns.
func (m *model) destroy(n int, takes int64, well bool) {
	if well {
		m.at(m.now+takes, event{kind: evQuiet, n: n})
	}
	m.at(m.now+takes+1, event{kind: evRetired, n: n, well: well})
}

// quiet takes everything from the adapter.
func (m *model) quiet(n int) {
	d := &m.dcis[n]
	d.gen++
	d.sq, d.running, d.hung = nil, false, false
}

func (m *model) fenced(n int) {
	d := &m.dcis[n]
	m.inCQ -= len(d.owned) + len(d.posting)
	d.owned, d.posting, d.failed, d.stopping = nil, nil, false, false
	if d.owner >= 0 {
		m.moves[d.owner].stuck = false
	}
}

func (m *model) resetDone(e event) {
	m.returned(e.n)
	if e.well {
		m.fenced(e.n)
	} else {
		m.dcis[e.n].rogue = true
	}
	usable := e.well && !m.chance(3)
	if e.well && !usable {
		m.dcis[e.n].failed, m.dcis[e.n].rogue, m.dcis[e.n].stopping = true, true, true
	}
	m.do(m.core.ResetDone(e.n, e.well, usable))
}

func (m *model) retired(e event) {
	m.returned(e.n)
	d := &m.dcis[e.n]
	d.dead = true
	usable := false
	if e.well {
		m.fenced(e.n)
		d.failed, d.rogue, d.stopping = true, true, true
		if usable = !m.chance(30); usable {
			m.fresh(d)
		} else {
			m.at(m.now+m.some(100), event{kind: evMade, n: e.n})
		}
	}
	m.do(m.core.RetireDone(e.n, e.well, usable))
	if !e.well && m.rng.IntN(2) == 0 { // somebody tries again
		m.destroy(e.n, m.some(300), true)
	}
}

// fresh is a DCI in place of one that was destroyed.
func (m *model) fresh(d *dci) { d.dead, d.failed, d.rogue, d.stopping = false, false, false, false }

func (m *model) made(e event) {
	if m.chance(20) {
		m.at(m.now+m.some(200), e)
		return
	}
	m.fresh(&m.dcis[e.n])
	m.do(m.core.Made(e.n))
}

// release checks that the adapter has nothing of a transfer.
func (m *model) release(i int) {
	v := &m.moves[i]
	if v.released {
		m.blame("transfer %d released twice", i)
	}
	for n := range m.dcis {
		d := &m.dcis[n]
		for _, list := range [][]job{d.owned, d.posting, d.sq} {
			for _, j := range list {
				if j.move == i {
					m.blame("buffer of transfer %d freed early: work request %d of DCI %d", i, j.id, n)
					return
				}
			}
		}
		if d.owner == i {
			d.owner = -1
			if d.asked {
				m.blame("buffer of transfer %d freed early: a post of DCI %d is under way", i, n)
			}
		}
	}
	v.released = true
}

// finish checks a transfer's end: nothing of it is in the network, and one that went well has moved its bytes.
func (m *model) finish(i int, r Result) {
	v := &m.moves[i]
	switch {
	case v.finished:
		m.blame("transfer %d finished twice", i)
	case !v.released:
		m.blame("transfer %d finished before its release", i)
	case v.inFlight > 0:
		m.blame("transfer %d finished with %d packets in the network", i, v.inFlight)
	// One that had a DCI, and had posted nothing, when the port went down lingers all the same.
	case r == Lost && v.lane == -1 && !v.unwanted && !m.down && m.now > m.upAt+linger && m.serves():
		m.blame("transfer %d was refused, and there is a DCI", i)
	}
	v.finished, v.result = true, r
	if r == OK {
		m.compare(i)
	}
	for k := range v.local { // used for something else from now on
		v.local[k] = 0xdb
	}
}

func (m *model) compare(i int) {
	v := &m.moves[i]
	from := int(v.Remote) - base
	there := m.memory[from:][:len(v.local)]
	if !bytes.Equal(v.local, v.want) || !bytes.Equal(there, v.want) {
		m.blame("transfer %d went well and has not moved its bytes", i)
	}
	if !v.proved {
		m.blame("transfer %d went well without its proof", i)
	}
	if m.now > v.deadline {
		m.blame("transfer %d went well at %d, after its deadline %d", i, m.now, v.deadline)
	}
}

// end checks what is left when nothing happens any more.
func (m *model) end() {
	c := m.core.Counts()
	used := 0
	for n := range m.dcis {
		used += len(m.dcis[n].owned)
	}
	if c.Work < used || c.Work > used && c.Stuck == 0 || c.Waiting != 0 || c.Idle+c.Stuck != m.o.Lanes ||
		c.Gone+c.Late != 0 {
		m.blame("at the end %+v, %d work requests with the adapter", c, used)
	}
	for i := range m.moves {
		if v := &m.moves[i]; !v.finished && !v.stuck {
			m.blame("transfer %d never ended", i)
		}
	}
	if m.faults == 0 && c.Stuck > 0 {
		m.blame("without faults %+v", c)
	}
}
