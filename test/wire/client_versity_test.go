package wire_test

import "strconv"

// versitygw's cuobjtest: three headers of its own, over the AWS SDK for Go, which signs the hash of an empty body.
func init() {
	clients = append(clients, &client{
		name: "versitygw cuobjtest", alias: true,
		sends: both(nonempty, noRanges, noParts),
		request: func(a *ask) *raw {
			r := a.start()
			r.add("Host", a.host)
			r.add("User-Agent", "aws-sdk-go-v2/1.40")
			if a.op != get {
				r.add("Content-Length", "0")
				r.add("Content-Type", "application/octet-stream")
			}
			r.add("Accept-Encoding", "identity")
			r.add("Amz-Sdk-Invocation-Id", "5f3759df-0000-4000-8000-000000000003")
			r.add("Amz-Sdk-Request", "attempt=1; max=3")
			r.add("X-Amz-Content-Sha256", emptyHash)
			r.add("X-Amz-Date", a.stamp())
			r.add("X-CuObj-RDMA-Descr", a.token)
			r.add("X-CuObj-Content-Length", strconv.FormatInt(a.window, 10))
			r.add("X-CuObj-Remote-Buf-Start", strconv.FormatUint(a.addr, 10))
			return a.finish(r, emptyHash, []string{"user-agent"})
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			if v, ok := r.sdkError(same); !ok {
				return v, 0
			}
			reply := r.reply()
			if (reply == "200" || reply == "204" || a.op == get && reply == "206") && r.count() == a.window {
				return moved, a.window
			}
			return failed, 0
		},
		cells: versitygwCuobjtestCells,
	})
}

const versitygwCuobjtestCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            err        err
get-range            -          -
get-first            -          -
get-first-large      -          -
get-empty            -          -
get-too-large        err        err
get-not-modified     err        err
get-precondition     err        err
get-bad-range        -          -
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
