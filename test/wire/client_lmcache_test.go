package wire_test

import "strconv"

// LMCache's experimental connector: whole objects, and the status is all it looks at. Its PUT announces the payload's
// length and sends no body.
func init() {
	clients = append(clients, &client{
		name: "LMCache", announces: true, sends: both(nonempty, noRanges, noParts),
		request: func(a *ask) *raw {
			r := a.start()
			r.add("Host", a.host)
			if a.op != get {
				r.add("Content-Length", strconv.FormatInt(a.window, 10))
				r.add("Content-Type", "application/octet-stream")
			}
			r.add("x-amz-rdma-token", a.token)
			r.add("x-amz-date", a.stamp())
			r.add("x-amz-content-sha256", unsigned)
			return a.finish(r, unsigned, nil)
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			if r.ok() {
				return moved, a.window
			}
			return failed, 0
		},
		cells: lMCacheCells,
		listed: map[string]string{
			"get-roomy":     "asks for more than there is and takes the status for all of it; over HTTP it would be short, too",
			"declines spec": "looks at the status only; the mode is documented as not for it",
		},
	})
}

const lMCacheCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            ok!        ok!
get-range            -          -
get-first            -          -
get-first-large      -          -
get-empty            -          -
get-too-large        err        ok!
get-not-modified     err        err
get-precondition     err        err
get-bad-range        -          -
get-no-rail          err        ok!
get-no-session       err        ok!
get-unsupported      err        ok!
get-busy             err        ok!
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
put                  err        err
put-small            err        err
put-over             err        err
put-empty            -          -
put-precondition     err        err
put-wrong-sum        err        err
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
