package wire_test

import "fmt"

// hipObject's bridge into the MinIO client: tokens of its own grammar, with address and size behind them, on requests
// for objects. They work with no adapter here.
func init() {
	clients = append(clients, &client{
		name: "hipObject bridge", falls: true, sends: both(nonempty, fits),
		request: func(a *ask) *raw {
			r := a.start()
			r.add("Host", a.host)
			r.add("x-amz-date", a.stamp())
			r.add("x-amz-content-sha256", unsigned)
			token := a.token
			if !a.garbage && !a.ofi {
				token = fmt.Sprintf("%s:%016x:%016x", hipToken(a.addr, a.window), a.addr, a.window)
			}
			r.add("x-amz-rdma-token", token)
			if a.op == get {
				r.add("Range", a.rangeText())
				return a.finish(r, unsigned, nil, field{"User-Agent", "hipobj"})
			}
			r.add("Content-Type", "application/octet-stream")
			r.add("Content-Length", "0")
			r.add("x-amz-checksum-crc64nvme", a.sum)
			return a.finish(r, unsigned, nil, field{"User-Agent", "hipobj"})
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			switch {
			case r.closed:
				return failed, 0
			case a.op != get && r.status == 200 && r.etag() != "":
				return moved, a.window
			case r.reply() == "501" || r.status == 501:
				return byHTTP, 0
			case a.op != get && (r.reply() == "200" || r.reply() == "204"):
				return moved, a.window
			case a.op == get && (r.reply() == "200" || r.reply() == "206") && r.count() > 0:
				return moved, r.count()
			}
			return failed, 0
		},
		cells: hipObjectBridgeCells,
	})
}

const hipObjectBridgeCells = `
get                  http       http
get-small            http       http
get-roomy            http       http
get-range            http       http
get-first            -          -
get-first-large      -          -
get-empty            -          -
get-too-large        -          -
get-not-modified     err        err
get-precondition     err        err
get-bad-range        err        err
get-no-rail          http       http
get-no-session       http       http
get-unsupported      http       http
get-busy             http       http
get-bad-token        err        err
get-outside          http       http
get-replayed         http       http
get-not-granted      http       http
get-forged           err        err
get-absent           err        err
get-limit            http       http
get-halfway          http       http
get-deadline         http       http
get-no-answer        http       http
put                  http       http
put-small            http       http
put-over             http       http
put-empty            -          -
put-precondition     http       http
put-wrong-sum        http       http
put-sum-of-nothing   http       http
put-over-declined    http       http
put-over-halfway     http       http
put-no-rail          http       http
put-no-session       http       http
put-unsupported      http       http
put-busy             http       http
put-bad-token        err        err
put-outside          http       http
put-replayed         http       http
put-not-granted      http       http
put-forged           err        err
put-absent           err        err
put-limit            http       http
put-halfway          http       http
put-deadline         http       http
put-no-answer        http       http
part                 http       http
part-no-rail         http       http
part-no-session      http       http
part-unsupported     http       http
part-busy            http       http
part-bad-token       err        err
part-outside         http       http
part-replayed        http       http
part-not-granted     http       http
part-forged          err        err
part-absent          err        err
part-limit           http       http
part-halfway         http       http
part-deadline        http       http
part-no-answer       http       http
`
