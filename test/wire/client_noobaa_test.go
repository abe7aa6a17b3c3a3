package wire_test

// NooBaa's client for Node, over the AWS SDK for JavaScript: it names its agent, and takes any 2xx reply whose count is
// that of its buffer. Attempts of the SDK share the token.
func init() {
	clients = append(clients, &client{
		name: "NooBaa", sends: func(s *scenario) bool { return s.op == get || s.size > 0 },
		request: func(a *ask) *raw {
			r := a.start()
			if a.ranged {
				r.add("range", a.rangeText())
			}
			if a.op != get {
				r.add("content-type", "application/octet-stream")
				r.add("content-length", "0")
			}
			r.add("x-amz-user-agent", "aws-sdk-js/3")
			r.add("x-amz-rdma-agent", "cuobj")
			r.add("x-amz-rdma-token", a.token)
			r.add("host", a.host)
			r.add("amz-sdk-invocation-id", "5f3759df-0000-4000-8000-000000000004")
			r.add("amz-sdk-request", "attempt=1; max=3")
			r.add("x-amz-date", a.stamp())
			r.add("x-amz-content-sha256", emptyHash)
			return a.finish(r, emptyHash, []string{"user-agent"}, field{"connection", "keep-alive"})
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			if v, ok := r.sdkError(same); !ok {
				return v, 0
			}
			if reply := r.reply(); len(reply) == 3 && reply[0] == '2' && r.count() == a.window {
				return moved, a.window
			}
			return failed, 0
		},
		cells: nooBaaCells,
	})
}

const nooBaaCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            err        err
get-range            ok         ok
get-first            -          -
get-first-large      -          -
get-empty            err        err
get-too-large        err        err
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
part-limit           same       same
part-halfway         same       same
part-deadline        same       same
part-no-answer       same       same
`
