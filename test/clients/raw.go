package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// raw is the oracle's own way to the node: signed requests made here, by nobody's library.
type raw struct{ n *node }

// call is one signed request.
type call struct {
	method, bucket, key string
	query               map[string]string
	header              map[string]string
	body                []byte
}

// reply is an answer with its body read.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// escape encodes all but the unreserved bytes; a slash stays in paths.
func escape(s string, path bool) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9',
			c == '-', c == '_', c == '.', c == '~', path && c == '/':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func (r raw) do(ctx context.Context, c call) (reply, error) {
	path := "/"
	if c.bucket != "" {
		path += c.bucket
	}
	if c.key != "" {
		path += "/" + c.key
	}
	var names []string
	for k := range c.query {
		names = append(names, k)
	}
	slices.Sort(names)
	for i, k := range names {
		names[i] = escape(k, false) + "=" + escape(c.query[k], false)
	}
	query := strings.Join(names, "&")
	u := &url.URL{Scheme: r.n.scheme, Host: r.n.host, Path: path, RawPath: escape(path, true), RawQuery: query}
	req, err := http.NewRequestWithContext(ctx, c.method, u.String(), bytes.NewReader(c.body))
	if err != nil {
		return reply{}, fmt.Errorf("raw: make request: %w", err)
	}
	req.URL = u
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	sum := sha256.Sum256(c.body)
	r.sign(req, hex.EncodeToString(sum[:]), time.Now().UTC())
	resp, err := r.n.http.Do(req)
	if err != nil {
		return reply{}, fmt.Errorf("raw: %s %s: %w", c.method, path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, fmt.Errorf("raw: %s %s: read: %w", c.method, path, err)
	}
	return reply{resp.StatusCode, resp.Header, body}, nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// sign adds a Signature Version 4 over all headers that are set.
func (r raw) sign(req *http.Request, payload string, now time.Time) {
	req.Header.Set("X-Amz-Date", now.Format("20060102T150405Z"))
	req.Header.Set("X-Amz-Content-Sha256", payload)
	names := []string{"host"}
	for k := range req.Header {
		names = append(names, strings.ToLower(k))
	}
	slices.Sort(names)
	var headers strings.Builder
	for _, k := range names {
		v := req.Header.Get(k)
		if k == "host" {
			v = req.URL.Host
		}
		headers.WriteString(k + ":" + strings.Join(strings.Fields(v), " ") + "\n")
	}
	signed := strings.Join(names, ";")
	canonical := strings.Join([]string{req.Method, req.URL.EscapedPath(), req.URL.RawQuery, headers.String(), signed,
		payload}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	day := now.Format("20060102")
	scope := day + "/us-east-1/s3/aws4_request"
	text := strings.Join([]string{"AWS4-HMAC-SHA256", now.Format("20060102T150405Z"), scope,
		hex.EncodeToString(sum[:])}, "\n")
	key := mac(mac(mac(mac([]byte("AWS4"+r.n.secretKey), day), "us-east-1"), "s3"), "aws4_request")
	req.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s",
		r.n.accessKey, scope, signed, hex.EncodeToString(mac(key, text))))
}

// want makes a call that must have one of the statuses.
func (r raw) want(ctx context.Context, c call, statuses ...int) (reply, error) {
	got, err := r.do(ctx, c)
	if err == nil && !slices.Contains(statuses, got.status) {
		err = fmt.Errorf("raw: %s %s/%s: status %d, want %v: %s", c.method, c.bucket, c.key, got.status, statuses,
			clip(string(got.body)))
	}
	return got, err
}

func (r raw) makeBucket(ctx context.Context, name string) error {
	_, err := r.want(ctx, call{method: "PUT", bucket: name}, 200)
	return err
}

func (r raw) put(ctx context.Context, bucket, key string, body []byte) error {
	_, err := r.want(ctx, call{method: "PUT", bucket: bucket, key: key, body: body}, 200)
	return err
}

// newSum makes the hash of a checksum algorithm, as S3 names it.
func newSum(algo string) hash.Hash {
	const nvme = 0x9a6c9329ac4bc9b5 // the polynomial of CRC-64/NVME, bits reversed
	switch algo {
	case "CRC32":
		return crc32.NewIEEE()
	case "CRC32C":
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case "SHA1":
		return sha1.New()
	case "SHA256":
		return sha256.New()
	case "CRC64NVME":
		return crc64.New(crc64.MakeTable(nvme))
	}
	return nil
}

var algorithms = []string{"CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"}

func sumOf(algo string, data []byte) string {
	h := newSum(algo)
	h.Write(data)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

func md5Hex(data []byte) string {
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}

// multipartETag is that of an upload in parts of one size.
func multipartETag(data []byte, part int64) string {
	var all []byte
	count := 0
	for at := int64(0); at < int64(len(data)); at += part {
		sum := md5.Sum(data[at:min(at+part, int64(len(data)))])
		all = append(all, sum[:]...)
		count++
	}
	return fmt.Sprintf("%s-%d", md5Hex(all), count)
}

// verify reads an object and compares everything that the node says about it with what the bytes
// should give: length, ETag, checksums. part is the size of parts that a multipart ETag may have.
func (r raw) verify(ctx context.Context, bucket, key string, want []byte, part int64) (reply, error) {
	got, err := r.want(ctx, call{
		method: "GET", bucket: bucket, key: key, header: map[string]string{"x-amz-checksum-mode": "ENABLED"},
	}, 200)
	if err != nil {
		return got, err
	}
	if !bytes.Equal(got.body, want) {
		return got, fmt.Errorf("raw: %s/%s: %d bytes that differ from the %d put", bucket, key, len(got.body), len(want))
	}
	etag := strings.Trim(got.header.Get("ETag"), `"`)
	expected := md5Hex(want)
	if strings.Contains(etag, "-") && part != 0 {
		expected = multipartETag(want, part)
	}
	if etag != expected {
		return got, fmt.Errorf("raw: %s/%s: ETag %s, want %s", bucket, key, etag, expected)
	}
	seen := 0
	for _, algo := range algorithms {
		sum := got.header.Get("x-amz-checksum-" + strings.ToLower(algo))
		if sum == "" {
			continue
		}
		seen++
		if strings.Contains(sum, "-") {
			if kind := got.header.Get("x-amz-checksum-type"); kind != "COMPOSITE" {
				return got, fmt.Errorf("raw: %s/%s: composite checksum %s has type %q", bucket, key, sum, kind)
			}
		} else if sum != sumOf(algo, want) {
			return got, fmt.Errorf("raw: %s/%s: %s is %s, want %s", bucket, key, algo, sum, sumOf(algo, want))
		}
	}
	if seen == 0 {
		return got, fmt.Errorf("raw: %s/%s: no checksum", bucket, key)
	}
	return got, nil
}

// startUpload begins a multipart upload, for clients that can only list and abort.
func (r raw) startUpload(ctx context.Context, bucket, key string) (string, error) {
	got, err := r.want(ctx, call{method: "POST", bucket: bucket, key: key, query: map[string]string{"uploads": ""}}, 200)
	if err != nil {
		return "", err
	}
	var doc struct{ UploadId string }
	if err := xml.Unmarshal(got.body, &doc); err != nil {
		return "", fmt.Errorf("raw: read upload id: %w", err)
	}
	return doc.UploadId, nil
}

// uploads lists unfinished ones: ids by key.
func (r raw) uploads(ctx context.Context, bucket string) (map[string]string, error) {
	got, err := r.want(ctx, call{method: "GET", bucket: bucket, query: map[string]string{"uploads": ""}}, 200)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Upload []struct{ Key, UploadId string }
	}
	if err := xml.Unmarshal(got.body, &doc); err != nil {
		return nil, fmt.Errorf("raw: read uploads: %w", err)
	}
	ids := map[string]string{}
	for _, u := range doc.Upload {
		ids[u.Key] = u.UploadId
	}
	return ids, nil
}

// keys lists a whole bucket below a prefix: size by key.
func (r raw) keys(ctx context.Context, bucket, prefix string) (map[string]int64, error) {
	found := map[string]int64{}
	token := ""
	for {
		query := map[string]string{"list-type": "2", "prefix": prefix, "encoding-type": "url"}
		if token != "" {
			query["continuation-token"] = token
		}
		got, err := r.want(ctx, call{method: "GET", bucket: bucket, query: query}, 200)
		if err != nil {
			return nil, err
		}
		var doc struct {
			Contents []struct {
				Key  string
				Size int64
			}
			NextContinuationToken string
		}
		if err := xml.Unmarshal(got.body, &doc); err != nil {
			return nil, fmt.Errorf("raw: read listing: %w", err)
		}
		for _, c := range doc.Contents {
			key, err := url.QueryUnescape(c.Key)
			if err != nil {
				return nil, fmt.Errorf("raw: read key %q: %w", c.Key, err)
			}
			found[key] = c.Size
		}
		if token = doc.NextContinuationToken; token == "" {
			return found, nil
		}
	}
}
