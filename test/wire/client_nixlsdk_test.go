package wire_test

// NIXL's engines over the AWS SDK for C++: everpure, with the usual header, and dell, with one of its own. Both look at
// the status first; everpure then asks that there is a reply, whatever it says.
func init() {
	form := func(header string) func(a *ask) *raw {
		return func(a *ask) *raw {
			r := a.start()
			r.add("amz-sdk-invocation-id", "5F3759DF-0000-4000-8000-000000000001")
			r.add("amz-sdk-request", "attempt=1")
			if a.op == get {
				r.add("host", a.host)
				r.add("range", a.rangeText())
			} else {
				r.add("content-length", "0")
				r.add("content-type", "binary/octet-stream")
				r.add("host", a.host)
			}
			r.add("x-amz-content-sha256", unsigned)
			r.add("x-amz-date", a.stamp())
			r.add(header, a.token)
			return a.finish(r, unsigned, nil, field{"accept", "*/*"}, field{"user-agent", "aws-sdk-cpp/1.11"})
		}
	}
	clients = append(clients, &client{
		name: "NIXL everpure", sends: both(nonempty, fits, noParts), request: form("x-amz-rdma-token"),
		judge: func(a *ask, r *answer) (verdict, int64) {
			if v, ok := r.sdkError(same); !ok {
				return v, 0
			}
			if r.reply() == "" {
				return failed, 0
			}
			return moved, a.window
		},
		cells: nixlEverpureCells,
		listed: map[string]string{
			"get-roomy":     "asks for more than there is and takes the status for all of it; over HTTP it would be short, too",
			"declines spec": "takes any reply for success; the mode is documented as not for it",
		},
	}, &client{
		name: "NIXL dell", alias: true, sends: both(nonempty, fits, noParts), request: form("x-rdma-info"),
		judge: func(a *ask, r *answer) (verdict, int64) {
			if v, ok := r.sdkError(same); !ok {
				return v, 0
			}
			return moved, a.window
		},
		cells: nixlDellCells,
		listed: map[string]string{
			"get-roomy": "asks for more than there is and takes the status for all of it; over HTTP it would be short, too",
		},
	})
}

const nixlEverpureCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            ok!        ok!
get-range            ok         ok
get-first            -          -
get-first-large      -          -
get-empty            -          -
get-too-large        -          -
get-not-modified     err        err
get-precondition     err        err
get-bad-range        err        err
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
get-limit            same       same
get-halfway          same       same
get-deadline         same       same
get-no-answer        same       same
put                  ok         ok
put-small            ok         ok
put-over             ok         ok
put-empty            -          -
put-precondition     err        err
put-wrong-sum        ok         ok
put-sum-of-nothing   err        err
put-over-declined    err        ok!
put-over-halfway     same       same
put-no-rail          err        ok!
put-no-session       err        ok!
put-unsupported      err        ok!
put-busy             err        ok!
put-bad-token        err        err
put-outside          err        err
put-replayed         err        err
put-not-granted      err        err
put-forged           err        err
put-absent           err        err
put-limit            same       same
put-halfway          same       same
put-deadline         same       same
put-no-answer        same       same
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

const nixlDellCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            ok!        ok!
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
get-limit            same       same
get-halfway          same       same
get-deadline         same       same
get-no-answer        same       same
put                  ok         ok
put-small            ok         ok
put-over             ok         ok
put-empty            -          -
put-precondition     err        err
put-wrong-sum        ok         ok
put-sum-of-nothing   err        err
put-over-declined    err        err
put-over-halfway     same       same
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
put-limit            same       same
put-halfway          same       same
put-deadline         same       same
put-no-answer        same       same
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
