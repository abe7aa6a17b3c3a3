package wire_test

// Clients of hipobj-rc-v2: hipObject's test program, which signs for a service of its own and hashes nothing, and its
// library as versitygw drives it. Both sign a host without its port, and make a connection for each message.
func init() {
	data := hipSpeaker{service: "hipobj"}
	library := hipSpeaker{hash: emptyHash, title: true, padded: true, length: true, offset: true, cancels: true}
	clients = append(clients, &client{
		name: "hipObject data client", sends: both(nonempty, noRanges, fits), talks: data.talk,
		judge: func(a *ask, r *answer) (verdict, int64) {
			if !r.connects() || r.closed || r.status != 200 || a.op == get && !r.immediate {
				return failed, 0
			}
			return moved, a.window
		},
		cells: hipObjectDataClientCells,
	}, &client{
		name: "hipObject library, versitygw", sends: both(nonempty, fits), talks: library.talk,
		judge: func(a *ask, r *answer) (verdict, int64) {
			want := 204
			if a.op == get {
				want = 200
			}
			staging := r.first != nil && r.first.header.Get("X-Amz-Rdma-Mr-Addr") != "0"
			switch {
			case !r.connects() || r.closed || a.op != get && !staging || a.op == get && !r.immediate:
				return failed, 0 // a 501 with its status too: that it is not supported is an error
			case r.status != want || r.header.Get("X-Amz-Rdma-Cookie") != hipCookie:
				return failed, 0
			}
			return moved, a.window // it does not look at the count
		},
		cells: hipObjectLibraryCells,
	})
}

const hipObjectDataClientCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            err        err
get-range            -          -
get-first            -          -
get-first-large      -          -
get-empty            -          -
get-too-large        -          -
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
part-no-answer       err        err
`

const hipObjectLibraryCells = `
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
part-no-answer       err        err
`
