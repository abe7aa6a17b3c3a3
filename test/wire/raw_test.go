package wire_test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Payload hashes that clients declare.
const (
	unsigned  = "UNSIGNED-PAYLOAD"
	emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// ioWait bounds one exchange: more than the deadline of any scenario.
const ioWait = 20 * time.Second

// field is one header, written as it stands.
type field struct{ name, value string }

// raw is one request, as it goes out.
type raw struct {
	method, path, query string // query in canonical order
	fields              []field
}

func (r *raw) add(name, value string) { r.fields = append(r.fields, field{name, value}) }

// with adds a header that is not there yet.
func (r *raw) with(more []field) {
	for _, f := range more {
		if !slices.ContainsFunc(r.fields, func(g field) bool { return strings.EqualFold(f.name, g.name) }) {
			r.fields = append(r.fields, f)
		}
	}
}

// signing is how a client signs: what of its headers, and over which payload hash.
type signing struct {
	id, secret, region string
	service            string // "": s3
	hash               string
	stamp              string
	skip               []string // lower-case names that it leaves out
}

// sign returns the value of Authorization for the headers that are there now: Signature Version 4, written here from
// its description so that the node does not check itself.
func (r *raw) sign(s signing) string {
	values := map[string]string{}
	var names []string
	for _, f := range r.fields {
		name := strings.ToLower(f.name)
		if slices.Contains(s.skip, name) {
			continue
		}
		values[name] = strings.TrimSpace(f.value)
		names = append(names, name)
	}
	slices.Sort(names)
	var canonical strings.Builder
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", r.method, r.path, r.query)
	for _, name := range names {
		fmt.Fprintf(&canonical, "%s:%s\n", name, values[name])
	}
	fmt.Fprintf(&canonical, "\n%s\n%s", strings.Join(names, ";"), s.hash)
	service := s.service
	if service == "" {
		service = "s3"
	}
	scope := s.stamp[:8] + "/" + s.region + "/" + service + "/aws4_request"
	sum := sha256.Sum256([]byte(canonical.String()))
	text := "AWS4-HMAC-SHA256\n" + s.stamp + "\n" + scope + "\n" + hex.EncodeToString(sum[:])
	key := []byte("AWS4" + s.secret)
	for _, part := range []string{s.stamp[:8], s.region, service, "aws4_request", text} {
		h := hmac.New(sha256.New, key)
		_, _ = h.Write([]byte(part)) // never fails
		key = h.Sum(nil)
	}
	return fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		s.id, scope, strings.Join(names, ";"), hex.EncodeToString(key))
}

func (r *raw) bytes() []byte {
	target := r.path
	if r.query != "" {
		target += "?" + r.query
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", r.method, target)
	for _, f := range r.fields {
		if f.value == "" {
			fmt.Fprintf(&b, "%s:\r\n", f.name)
			continue
		}
		fmt.Fprintf(&b, "%s: %s\r\n", f.name, f.value)
	}
	b.WriteString("\r\n")
	return []byte(b.String())
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	closed bool // the connection ended without an answer

	// Of clients that talk in messages:
	first     *answer // to the first one
	immediate bool    // the adapter told the client that the transfer is done
}

// exchange sends the request on a connection of its own and reads the answer.
func exchange(t *testing.T, host string, r *raw) answer {
	t.Helper()
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(ioWait)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(r.bytes()); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: r.method})
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return answer{closed: true}
	}
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: body}
}
