package wire_test

import "fmt"

// elbencho: the plugin s3rdma_minio with its own signatures, and the test client of tools/s3rdma, whose tokens name a
// connection. That client signs nothing; its requests are signed here, since this node answers them 403 otherwise
// (TestUnsignedRequestsAreRefused).
func init() {
	clients = append(clients, &client{
		name: "elbencho s3rdma_minio", sends: both(nonempty, fits),
		request: func(a *ask) *raw {
			r := a.start()
			if a.op == get {
				r.add("host", a.host)
				r.add("range", a.rangeText())
			} else {
				r.add("content-length", "0")
				r.add("content-type", "application/octet-stream")
				r.add("host", a.host)
			}
			r.add("x-amz-content-sha256", unsigned)
			r.add("x-amz-date", a.stamp())
			r.add("x-amz-rdma-token", a.token)
			return a.finish(r, unsigned, nil, field{"User-Agent", "elbencho"})
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			switch {
			case r.closed:
				return again, 0
			case a.op != get && r.status == 200 && r.etag() != "":
				return moved, a.window
			case r.reply() == "", r.reply() == "501":
				return failed, 0
			case a.op == get && (r.reply() == "200" || r.reply() == "206"):
				if r.header.Get("X-Amz-Rdma-Bytes-Transferred") == "" {
					return moved, a.window
				}
				if n := r.count(); n > 0 {
					return moved, n
				}
			}
			return again, 0
		},
		cells: elbenchoS3rdmaMinioCells,
	}, &client{
		name: "elbencho s3rdma-client", sends: both(nonempty, fits, noParts),
		request: func(a *ask) *raw {
			r := elbenchoPlain(a)
			r.with([]field{{"x-amz-date", a.stamp()}, {"x-amz-content-sha256", unsigned}})
			return a.finish(r, unsigned, nil)
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			reply := r.reply()
			switch {
			case r.closed:
			case a.op != get && r.status == 200 && r.etag() != "": // whatever the reply
				return moved, a.window
			case a.op != get || reply != "200" && reply != "206":
			case r.header.Get("X-Amz-Rdma-Bytes-Transferred") == "", r.count() == a.window:
				return moved, a.window
			}
			return failed, 0
		},
		cells: elbenchoS3rdmaClientCells,
	})
}

// elbenchoPlain is the request as it goes out, unsigned.
func elbenchoPlain(a *ask) *raw {
	r := a.start()
	r.add("Host", a.host)
	token := a.token
	if !a.garbage && !a.ofi {
		token = fmt.Sprintf("rc:%s:%016x:%08x:%08x", a.connection, a.addr, a.window, 0x01f2e973)
	}
	r.add("x-amz-rdma-token", token)
	if a.op == get {
		r.add("Range", a.rangeText())
		return r
	}
	r.add("x-amz-content-sha256", unsigned)
	r.add("Content-Type", "application/octet-stream")
	r.add("Content-Length", "0")
	return r
}

const elbenchoS3rdmaMinioCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            ok         ok
get-range            ok         ok
get-first            -          -
get-first-large      -          -
get-empty            -          -
get-too-large        -          -
get-not-modified     err        err
get-precondition     err        err
get-bad-range        err        err
get-no-rail          err        err
get-no-session       err        err
get-unsupported      err        err
get-busy             err        err
get-bad-token        err        err
get-outside          err        err
get-replayed         err        err
get-not-granted      err        err
get-forged           err        err
get-absent           err        err
get-limit            err        err
get-halfway          err        err
get-deadline         err        err
get-no-answer        again      again
put                  ok         ok
put-small            ok         ok
put-over             ok         ok
put-empty            -          -
put-precondition     err        err
put-wrong-sum        ok         ok
put-sum-of-nothing   err        err
put-over-declined    err        err
put-over-halfway     err        err
put-no-rail          err        err
put-no-session       err        err
put-unsupported      err        err
put-busy             err        err
put-bad-token        err        err
put-outside          err        err
put-replayed         err        err
put-not-granted      err        err
put-forged           err        err
put-absent           err        err
put-limit            err        err
put-halfway          err        err
put-deadline         err        err
put-no-answer        again      again
part                 ok         ok
part-no-rail         err        err
part-no-session      err        err
part-unsupported     err        err
part-busy            err        err
part-bad-token       err        err
part-outside         err        err
part-replayed        err        err
part-not-granted     err        err
part-forged          err        err
part-absent          err        err
part-limit           err        err
part-halfway         err        err
part-deadline        err        err
part-no-answer       again      again
`

const elbenchoS3rdmaClientCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            err        err
get-range            ok         ok
get-first            -          -
get-first-large      -          -
get-empty            -          -
get-too-large        -          -
get-not-modified     err        err
get-precondition     err        err
get-bad-range        err        err
get-no-rail          err        err
get-no-session       err        err
get-unsupported      err        err
get-busy             err        err
get-bad-token        err        err
get-outside          err        err
get-replayed         err        err
get-not-granted      err        err
get-forged           err        err
get-absent           err        err
get-limit            err        err
get-halfway          err        err
get-deadline         err        err
get-no-answer        err        err
put                  ok         ok
put-small            ok         ok
put-over             ok         ok
put-empty            -          -
put-precondition     err        err
put-wrong-sum        ok         ok
put-sum-of-nothing   err        err
put-over-declined    err        err
put-over-halfway     err        err
put-no-rail          err        err
put-no-session       err        err
put-unsupported      err        err
put-busy             err        err
put-bad-token        err        err
put-outside          err        err
put-replayed         err        err
put-not-granted      err        err
put-forged           err        err
put-absent           err        err
put-limit            err        err
put-halfway          err        err
put-deadline         err        err
put-no-answer        err        err
part                 -          -
part-no-rail         -          -
part-no-session      -          -
part-unsupported     -          -
part-busy            -          -
part-bad-token       -          -
part-outside         -          -
part-replayed        -          -
part-not-granted     -          -
part-forged          -          -
part-absent          -          -
part-limit           -          -
part-halfway         -          -
part-deadline        -          -
part-no-answer       -          -
`
