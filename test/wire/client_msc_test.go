package wire_test

// NVIDIA multi-storage-client, provider s3_cuobject, over botocore: each attempt is signed with a token of its own, and
// no answer leads to HTTP.
func init() {
	clients = append(clients, &client{
		name: "multi-storage-client", sends: nonempty,
		request: func(a *ask) *raw {
			r := a.start()
			r.add("Host", a.host)
			r.add("Accept-Encoding", "identity")
			if a.op == get && a.ranged {
				r.add("Range", a.rangeText())
			}
			if a.op != get {
				r.add("x-amz-checksum-crc64nvme", a.sum)
			}
			r.add("User-Agent", "Boto3/1.44 Botocore/1.44")
			r.add("X-Amz-Date", a.stamp())
			r.add("X-Amz-Content-SHA256", unsigned)
			r.add("x-amz-rdma-token", a.token)
			r.add("amz-sdk-invocation-id", "5f3759df-0000-4000-8000-000000000002")
			r.add("amz-sdk-request", "attempt=1")
			tail := []field{}
			if a.op != get {
				tail = append(tail, field{"Content-Length", "0"})
			}
			return a.finish(r, unsigned, []string{"user-agent", "accept-encoding"}, tail...)
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			if v, ok := r.sdkError(again); !ok {
				return v, 0
			}
			reply := r.reply()
			if a.op != get {
				if r.status == 200 && r.etag() != "" && (reply == "" || reply == "200" || reply == "204") {
					return moved, a.window
				}
				return failed, 0
			}
			if r.status == 200 && reply == "200" || r.status == 206 && reply == "206" {
				switch n := r.count(); {
				case n > a.window:
					return failed, 0
				case n < 0 && r.header.Get("X-Amz-Rdma-Bytes-Transferred") != "":
					return failed, 0
				default:
					return moved, max(n, 0)
				}
			}
			return failed, 0
		},
		cells: multiStorageClientCells,
	})
}

const multiStorageClientCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            ok         ok
get-range            ok         ok
get-first            -          -
get-first-large      -          -
get-empty            -          -
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
get-limit            again      again
get-halfway          again      again
get-deadline         again      again
get-no-answer        again      again
put                  ok         ok
put-small            ok         ok
put-over             ok         ok
put-empty            -          -
put-precondition     err        err
put-wrong-sum        err        err
put-sum-of-nothing   err        err
put-over-declined    err        err
put-over-halfway     again      again
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
put-limit            again      again
put-halfway          again      again
put-deadline         again      again
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
part-limit           again      again
part-halfway         again      again
part-deadline        again      again
part-no-answer       again      again
`
