package wire_test

import "strings"

// Dell's storage-performance-tool: whole objects by RDMA, ranges by HTTP. Whether an HTTP error leads to a repeat over
// HTTP is a setting of its workload: where a 501 takes the fallback away, the cell says so, with that reason.
func init() {
	clients = append(clients, &client{
		name: "Dell SPT", sends: both(nonempty, noRanges), falls: true,
		request: func(a *ask) *raw {
			r := a.start()
			r.add("Host", a.host)
			r.add("x-amz-date", a.stamp())
			r.add("x-amz-content-sha256", unsigned)
			r.add("x-amz-rdma-token", a.token)
			if a.op != get {
				r.add("Content-Length", "0")
			}
			return a.finish(r, unsigned, nil)
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			reply := strings.TrimSpace(r.reply())
			switch {
			case r.closed || r.status >= 400:
				return failed, 0
			case reply == "" || reply == "501":
				return byHTTP, 0
			case reply != "200" && reply != "204" && reply != "206" || len(r.body) > 0:
				return failed, 0
			case a.op == get && r.count() != a.window:
				return failed, 0
			}
			return moved, a.window
		},
		cells: dellSPTCells,
		listed: map[string]string{
			"declines 501": "an HTTP error is the business of its workload, which may name HTTP as the fallback",
		},
	})
}

const dellSPTCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            err        err
get-range            -          -
get-first            -          -
get-first-large      -          -
get-empty            -          -
get-too-large        err?       http
get-not-modified     http       http
get-precondition     err        err
get-bad-range        -          -
get-no-rail          err?       http
get-no-session       err?       http
get-unsupported      err?       http
get-busy             err?       http
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
put-over-declined    err?       http
put-over-halfway     err        err
put-no-rail          err?       http
put-no-session       err?       http
put-unsupported      err?       http
put-busy             err?       http
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
part-no-rail         err?       http
part-no-session      err?       http
part-unsupported     err?       http
part-busy            err?       http
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
