package wire_test

// minio-cpp, and through it minio-go with the tag rdma, minio-py and warp. Its transport sends an Expect without a
// value.
func init() {
	clients = append(clients, &client{
		name: "minio-cpp", falls: true,
		request: func(a *ask) *raw {
			r := a.start()
			r.add("Host", a.host)
			r.add("x-amz-date", a.stamp())
			r.add("x-amz-content-sha256", unsigned)
			r.add("x-amz-rdma-token", a.token)
			if a.op == get {
				if a.ranged {
					r.add("Range", a.rangeText())
				}
				return a.finish(r, unsigned, nil, field{"Expect", ""}, field{"User-Agent", "MinIO (linux; x86_64) minio-cpp"})
			}
			r.add("Content-Type", "application/octet-stream")
			r.add("Content-Length", "0")
			r.add("x-amz-checksum-crc64nvme", a.sum)
			return a.finish(r, unsigned, nil, field{"Expect", ""}, field{"User-Agent", "MinIO (linux; x86_64) minio-cpp"})
		},
		judge: func(a *ask, r *answer) (verdict, int64) {
			switch {
			case r.closed, a.op != get && a.window == 0: // a transfer of nothing counts as one that failed
				return againHTTP, 0
			case a.op != get && r.status == 200 && r.etag() != "":
				return moved, a.window
			case r.reply() == "", r.reply() == "501":
				return byHTTP, 0
			case a.op != get && (r.reply() == "200" || r.reply() == "204"):
				return moved, a.window
			case a.op == get && (r.reply() == "200" || r.reply() == "206"):
				n := r.count()
				if r.header.Get("X-Amz-Rdma-Bytes-Transferred") == "" {
					n = a.window
				}
				if n > 0 {
					return moved, n
				}
			}
			return againHTTP, 0
		},
		cells: minioCppCells,
	})
}

const minioCppCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            ok         ok
get-range            ok         ok
get-first            -          -
get-first-large      -          -
get-empty            again-http again-http
get-too-large        http       http
get-not-modified     http       http
get-precondition     http       http
get-bad-range        http       http
get-no-rail          http       http
get-no-session       http       http
get-unsupported      http       http
get-busy             http       http
get-bad-token        http       http
get-outside          http       http
get-replayed         http       http
get-not-granted      http       http
get-forged           http       http
get-absent           http       http
get-limit            http       http
get-halfway          http       http
get-deadline         http       http
get-no-answer        again-http again-http
put                  ok         ok
put-small            ok         ok
put-over             ok         ok
put-empty            again-http again-http
put-precondition     http       http
put-wrong-sum        http       http
put-sum-of-nothing   http       http
put-over-declined    http       http
put-over-halfway     http       http
put-no-rail          http       http
put-no-session       http       http
put-unsupported      http       http
put-busy             http       http
put-bad-token        http       http
put-outside          http       http
put-replayed         http       http
put-not-granted      http       http
put-forged           http       http
put-absent           http       http
put-limit            http       http
put-halfway          http       http
put-deadline         http       http
put-no-answer        again-http again-http
part                 ok         ok
part-no-rail         http       http
part-no-session      http       http
part-unsupported     http       http
part-busy            http       http
part-bad-token       http       http
part-outside         http       http
part-replayed        http       http
part-not-granted     http       http
part-forged          http       http
part-absent          http       http
part-limit           http       http
part-halfway         http       http
part-deadline        http       http
part-no-answer       again-http again-http
`
