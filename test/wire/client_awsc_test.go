package wire_test

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"strings"
)

// aws-c-s3 with its RDMA provider. Content-Length: 0 goes out on a GET, too. Into its own buffers it reads what it
// gets; buffers of the caller must be filled exactly.
func init() {
	c := &client{
		name: "aws-c-s3", falls: true, probes: true, request: awsCRequest,
		judge: func(a *ask, r *answer) (verdict, int64) { return awsCJudge(a, r, false) },
		cells: awsCCells, listed: awsCListed,
	}
	user := *c
	user.name = "aws-c-s3, buffers of the caller"
	user.judge = func(a *ask, r *answer) (verdict, int64) { return awsCJudge(a, r, true) }
	user.cells, user.listed = awsCUserCells, awsCUserListed
	clients = append(clients, c, &user)
}

func awsCRequest(a *ask) *raw {
	r := a.start()
	r.add("Host", a.host)
	r.add("User-Agent", "aws-c-s3")
	r.add("Content-Length", "0")
	if a.ranged {
		r.add("Range", a.rangeText())
	}
	r.add("x-amz-rdma-token", a.token)
	if a.op != get && a.scenario.sum == "" {
		sum := make([]byte, 4)
		binary.BigEndian.PutUint32(sum, crc32.Checksum(a.payload, crc32.MakeTable(crc32.Castagnoli)))
		r.add("x-amz-checksum-crc32c", base64.StdEncoding.EncodeToString(sum))
	} else if a.op != get {
		r.add("x-amz-checksum-crc32c", "AAAAAA==")
	}
	r.add("x-amz-date", a.stamp())
	r.add("x-amz-content-sha256", unsigned)
	return a.finish(r, unsigned, []string{"user-agent"})
}

// awsCJudge: a reply of up to three digits that is 400 or more is an error of RDMA, not of S3.
func awsCJudge(a *ask, r *answer, user bool) (verdict, int64) {
	if v, ok := r.sdkError(again); !ok {
		return v, 0
	}
	reply, refused := r.reply(), false
	if n, err := strconv.Atoi(reply); err == nil && len(reply) <= 3 && n >= 400 {
		refused = true
	}
	switch {
	case a.op != get && refused:
		return byHTTP, 0
	case a.op != get:
		return moved, a.window
	case refused && user:
		return failed, 0
	case refused || reply == "":
		return inBody, int64(len(r.body))
	}
	text, _, _ := strings.Cut(r.header.Get("X-Amz-Rdma-Bytes-Transferred"), "/")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > a.window {
		n = 0
	}
	if user && n != a.window {
		return failed, 0
	}
	if n == 0 { // it then is an answer by HTTP with what its body has
		return inBody, int64(len(r.body))
	}
	return moved, n
}

const awsCCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            ok         ok
get-range            ok         ok
get-first            ok         ok
get-first-large      err?       body
get-empty            body       body
get-too-large        err?       body
get-not-modified     err        err
get-precondition     err        err
get-bad-range        err        err
get-no-rail          err?       body
get-no-session       err?       body
get-unsupported      err?       body
get-busy             err?       body
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
put-empty            ok         ok
put-precondition     err        err
put-wrong-sum        err        err
put-sum-of-nothing   err        err
put-over-declined    err?       http
put-over-halfway     again      again
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
put-limit            again      again
put-halfway          again      again
put-deadline         again      again
put-no-answer        again      again
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
part-limit           again      again
part-halfway         again      again
part-deadline        again      again
part-no-answer       again      again
`

var awsCListed = map[string]string{
	"declines 501": "repeats 500 and 503, never 501: rdma.decline: spec is for it",
}

const awsCUserCells = `
get                  ok         ok
get-small            ok         ok
get-roomy            err        err
get-range            ok         ok
get-first            err        err
get-first-large      err?       err?
get-empty            err        err
get-too-large        err?       err?
get-not-modified     err        err
get-precondition     err        err
get-bad-range        err        err
get-no-rail          err?       err?
get-no-session       err?       err?
get-unsupported      err?       err?
get-busy             err?       err?
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
put-empty            ok         ok
put-precondition     err        err
put-wrong-sum        err        err
put-sum-of-nothing   err        err
put-over-declined    err?       http
put-over-halfway     again      again
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
put-limit            again      again
put-halfway          again      again
put-deadline         again      again
put-no-answer        again      again
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
part-limit           again      again
part-halfway         again      again
part-deadline        again      again
part-no-answer       again      again
`

var awsCUserListed = map[string]string{
	"declines 501":  "repeats 500 and 503, never 501: rdma.decline: spec is for it",
	"declines spec": "a payload in the body does not go into the caller's buffer; PUTs fall back",
}
