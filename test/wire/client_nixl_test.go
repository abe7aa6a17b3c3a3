package wire_test

// NIXL's generic engine for accelerated object stores: every header that it sets is signed, in order; every read has a
// Range.
func init() {
	clients = append(clients, &client{
		name: "NIXL generic", sends: both(nonempty, fits),
		request: func(a *ask) *raw {
			r := a.start()
			if a.op == get {
				r.add("host", a.host)
				r.add("range", a.rangeText())
			} else {
				r.add("content-length", "0")
				r.add("content-type", "application/octet-stream")
				r.add("host", a.host)
				r.add("x-amz-checksum-algorithm", "CRC64NVME")
				r.add("x-amz-checksum-crc64nvme", a.sum)
			}
			r.add("x-amz-content-sha256", unsigned)
			r.add("x-amz-date", a.stamp())
			r.add("x-amz-rdma-token", a.token)
			return a.finish(r, unsigned, nil, field{"Accept", "*/*"})
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			switch {
			case r.closed:
				return again, 0
			case a.op != get && r.status == 200 && r.etag() != "" && r.reply() == "200":
				return moved, a.window
			case a.op == get && (r.status == 200 && r.reply() == "200" || r.status == 206 && r.reply() == "206"):
				switch n := r.count(); {
				case n > a.window:
					return failed, 0
				case n < 0:
					return moved, 0
				default:
					return moved, n
				}
			}
			return failed, 0
		},
		cells: nixlGenericCells,
	})
}

const nixlGenericCells = `
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
