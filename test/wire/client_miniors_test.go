package wire_test

import "strconv"

// minio-rs. Its transport writes header names in lower case.
func init() {
	clients = append(clients, &client{
		name: "minio-rs", sends: noRanges,
		request: func(a *ask) *raw {
			r := a.start()
			r.add("host", a.host)
			r.add("x-amz-rdma-token", a.token)
			r.add("x-amz-content-sha256", unsigned)
			r.add("x-amz-date", a.stamp())
			if a.op != get {
				r.add("content-type", "application/octet-stream")
				r.add("content-length", "0")
				r.add("x-amz-checksum-crc64nvme", a.sum)
			}
			return a.finish(r, unsigned, nil, field{"accept", "*/*"}, field{"user-agent", "MinIO (linux; x86_64) minio-rs"})
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			if r.closed {
				return again, 0
			}
			if a.op != get && r.status == 200 && r.etag() != "" {
				return moved, a.window
			}
			reply, err := strconv.ParseInt(r.reply(), 10, 32)
			if err != nil {
				reply = 0
			}
			switch {
			case reply == 501:
				return failed, 0
			case a.op != get && (reply == 200 || reply == 204):
				return moved, a.window
			case a.op == get && (reply == 200 || reply == 206):
				switch n := r.count(); {
				case n > 0:
					return moved, n
				case n == 0, r.header.Get("X-Amz-Rdma-Bytes-Transferred") == "":
					return moved, a.window // zero is its code for all of the window
				}
			}
			return again, 0
		},
		cells: minioRsCells,
		listed: map[string]string{
			"get-empty": "takes 0 bytes for the whole window; a decline would be an error for it and no better for others",
		},
	})
}

const minioRsCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            ok         ok
get-range            -          -
get-first            -          -
get-first-large      -          -
get-empty            ok!        ok!
get-too-large        err        err
get-not-modified     again      again
get-precondition     again      again
get-bad-range        -          -
get-no-rail          err        err
get-no-session       err        err
get-unsupported      err        err
get-busy             err        err
get-bad-token        again      again
get-outside          again      again
get-replayed         again      again
get-not-granted      again      again
get-forged           again      again
get-absent           again      again
get-limit            again      again
get-halfway          again      again
get-deadline         again      again
get-no-answer        again      again
put                  ok         ok
put-small            ok         ok
put-over             ok         ok
put-empty            ok         ok
put-precondition     again      again
put-wrong-sum        again      again
put-sum-of-nothing   again      again
put-over-declined    err        err
put-over-halfway     again      again
put-no-rail          err        err
put-no-session       err        err
put-unsupported      err        err
put-busy             err        err
put-bad-token        again      again
put-outside          again      again
put-replayed         again      again
put-not-granted      again      again
put-forged           again      again
put-absent           again      again
put-limit            again      again
put-halfway          again      again
put-deadline         again      again
put-no-answer        again      again
part                 ok         ok
part-no-rail         err        err
part-no-session      err        err
part-unsupported     err        err
part-busy            err        err
part-bad-token       again      again
part-outside         again      again
part-replayed        again      again
part-not-granted     again      again
part-forged          again      again
part-absent          again      again
part-limit           again      again
part-halfway         again      again
part-deadline        again      again
part-no-answer       again      again
`
