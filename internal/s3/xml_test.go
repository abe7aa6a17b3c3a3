package s3

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// decode reads an answer with encoding/xml, strict, and checks the root's namespace.
func decode(t *testing.T, doc []byte, into any) {
	t.Helper()
	if !strings.HasPrefix(string(doc), `<?xml version="1.0" encoding="UTF-8"?>`) {
		t.Errorf("no declaration: %.60s", doc)
	}
	if err := xml.Unmarshal(doc, into); err != nil {
		t.Fatalf("%v in %s", err, doc)
	}
	var root struct{ XMLName xml.Name }
	if err := xml.Unmarshal(doc, &root); err != nil || root.XMLName.Space != Namespace {
		t.Errorf("namespace %q", root.XMLName.Space)
	}
}

type contentsXML struct {
	Key, LastModified, ETag, StorageClass, ChecksumType string
	ChecksumAlgorithm                                   []string
	Size                                                int64
	Owner                                               *Owner
}

type listXML struct {
	XMLName                                                        xml.Name
	Name, Prefix, Marker, NextMarker, Delimiter, EncodingType      string
	StartAfter, ContinuationToken, NextContinuationToken, KeyCount string
	MaxKeys                                                        int
	IsTruncated                                                    bool
	Contents                                                       []contentsXML
	CommonPrefixes                                                 []struct{ Prefix string }
}

var xmlNow = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.FixedZone("x", 3600))

// TestS3_51: encoding-type=url as AWS. Oracle: url.QueryUnescape must give the key back.
func TestS3_51_EncodeURL(t *testing.T) {
	for in, want := range map[string]string{
		"a b.txt": "a+b.txt", "a+b": "a%2Bb", "a/b/": "a/b/", "~": "%7E", "*-._": "*-._", "ä": "%C3%A4", "\x01": "%01",
		"@:,=;()!'&?#%": "%40%3A%2C%3D%3B%28%29%21%27%26%3F%23%25", "": "",
	} {
		got := string(appendListEscaped(nil, in))
		back, err := url.QueryUnescape(got)
		if got != want || err != nil || back != in {
			t.Errorf("%q: %q, back %q %v", in, got, back, err)
		}
	}
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	if back, err := url.QueryUnescape(string(appendListEscaped(nil, string(all)))); err != nil || back != string(all) {
		t.Error("not every byte survives")
	}
	r := ListV2Result{Bucket: "b", Prefix: "p ", StartAfter: "s ", Delimiter: "d ",
		ContinuationToken: "c+/=", Continued: true,
		NextContinuationToken: "n+/=", EncodeURL: true, Objects: []ObjectEntry{{Key: "k \x01"}},
		Prefixes: []string{"x y/"}}
	var got listXML
	decode(t, Marshal(r), &got)
	if got.Prefix != "p+" || got.StartAfter != "s+" || got.Delimiter != "d+" || got.EncodingType != "url" ||
		got.ContinuationToken != "c+/=" || got.NextContinuationToken != "n+/=" || got.Contents[0].Key != "k+%01" ||
		got.CommonPrefixes[0].Prefix != "x+y/" {
		t.Errorf("%+v", got)
	}
	decode(t, Marshal(ListResult{Marker: "m ", NextMarker: "n ", EncodeURL: true, Truncated: true}), &got)
	if got.Marker != "m+" || got.NextMarker != "n+" || !got.IsTruncated {
		t.Errorf("%+v", got)
	}
}

// TestS3_52/61: without encoding the answer stays readable XML, whatever the key.
func TestS3_52_XMLSafe(t *testing.T) {
	var keys []string
	for r := range rune(0x3000) {
		keys = append(keys, "k"+string(r)+"]]>&lt;")
	}
	keys = append(keys, "\xff\xfe", "\ufffe\uffff", " lead and trail ", "a\r\nb\tc", "<&>\"'", "\U0001F600")
	var r ListV2Result
	for _, k := range keys {
		r.Objects = append(r.Objects, ObjectEntry{Key: k})
	}
	var got listXML
	decode(t, Marshal(r), &got)
	changed := 0
	for i, k := range keys {
		if got.Contents[i].Key != k {
			if changed++; !strings.ContainsRune(got.Contents[i].Key, '\uFFFD') {
				t.Errorf("%q became %q", k, got.Contents[i].Key)
			}
		}
	}
	if changed != 29+2 { // 29 control characters, bytes that are no UTF-8, two non-characters
		t.Errorf("%d keys changed", changed)
	}
}

// TestS3_59/60/61: dates with .000Z, quoted ETags, the namespace.
func TestS3_59_Listing(t *testing.T) {
	in := ListResult{Bucket: "b", Prefix: "p", Delimiter: "/", MaxKeys: 5, Prefixes: []string{"p/1/", "p/2/"},
		Objects: []ObjectEntry{{Key: "p", Modified: xmlNow, ETag: "e-1", Size: 9, Algorithms: []string{"CRC32"},
			ChecksumType: "COMPOSITE", Owner: &Owner{"id", "name"}}}}
	doc := Marshal(in)
	var got listXML
	decode(t, doc, &got)
	want := contentsXML{Key: "p", LastModified: "2026-01-02T02:04:05.000Z", ETag: `"e-1"`, StorageClass: "STANDARD",
		ChecksumType: "COMPOSITE", ChecksumAlgorithm: []string{"CRC32"}, Size: 9, Owner: &Owner{"id", "name"}}
	if !reflect.DeepEqual(got.Contents, []contentsXML{want}) || got.XMLName.Local != "ListBucketResult" ||
		got.MaxKeys != 5 || len(got.CommonPrefixes) != 2 || got.EncodingType != "" || got.IsTruncated {
		t.Errorf("%+v", got)
	}
	decode(t, Marshal(ListV2Result{Objects: in.Objects, Prefixes: in.Prefixes}), &got)
	if got.KeyCount != "3" {
		t.Error(got.KeyCount)
	}
}

func TestListBuckets(t *testing.T) {
	var got struct {
		XMLName xml.Name
		Owner   Owner
		Buckets struct {
			Bucket []struct{ Name, CreationDate, BucketRegion string }
		}
		ContinuationToken, Prefix string
	}
	decode(t, Marshal(ListBucketsResult{Owner: Owner{"i", "n"}, Buckets: []BucketEntry{{"one", xmlNow, "lab"},
		{Name: "two"}},
		Prefix: "p", ContinuationToken: "t"}), &got)
	if got.XMLName.Local != "ListAllMyBucketsResult" || len(got.Buckets.Bucket) != 2 || got.Owner.ID != "i" ||
		got.Buckets.Bucket[0].CreationDate != "2026-01-02T02:04:05.000Z" ||
		got.Buckets.Bucket[0].BucketRegion != "lab" ||
		got.ContinuationToken != "t" || got.Prefix != "p" {
		t.Errorf("%+v", got)
	}
}

// TestS3_39: us-east-1 is an empty LocationConstraint.
func TestS3_39_Location(t *testing.T) {
	for region, want := range map[string]string{"us-east-1": "", "eu-central-1": "eu-central-1"} {
		var got struct {
			XMLName xml.Name
			Text    string `xml:",chardata"`
		}
		decode(t, Marshal(LocationResult{region}), &got)
		if got.Text != want || got.XMLName.Local != "LocationConstraint" {
			t.Errorf("%q: %+v", region, got)
		}
	}
}

// TestS3_09: part and object copies answer checksums.
func TestS3_09_Results(t *testing.T) {
	sums := []Checksum{{CRC64NVME, "AAAAAAAAAAA="}, {SHA256, "x"}}
	type result struct {
		XMLName                                                  xml.Name
		ETag, LastModified, ChecksumCRC64NVME, ChecksumSHA256    string
		ChecksumType, Location, Bucket, Key, UploadId, VersionId string
	}
	for _, c := range []struct {
		m    Message
		want result
	}{
		{CopyObjectResult{"e", xmlNow, sums, FullObject}, result{ETag: `"e"`, LastModified: "2026-01-02T02:04:05.000Z",
			ChecksumCRC64NVME: "AAAAAAAAAAA=", ChecksumSHA256: "x", ChecksumType: "FULL_OBJECT"}},
		{CopyPartResult{"e", xmlNow, sums[:1]}, result{ETag: `"e"`, LastModified: "2026-01-02T02:04:05.000Z",
			ChecksumCRC64NVME: "AAAAAAAAAAA="}},
		{InitiateResult{"b", "k<", "u"}, result{Bucket: "b", Key: "k<", UploadId: "u"}},
		{CompleteResult{"http://l/b/k", "b", "k", "e-2", sums[1:], Composite}, result{Location: "http://l/b/k",
			Bucket: "b",
			Key:    "k", ETag: `"e-2"`, ChecksumSHA256: "x", ChecksumType: "COMPOSITE"}},
	} {
		var got result
		decode(t, Marshal(c.m), &got)
		name := strings.TrimPrefix(fmt.Sprintf("%T", c.m), "s3.")
		switch name {
		case "InitiateResult":
			name = "InitiateMultipartUploadResult"
		case "CompleteResult":
			name = "CompleteMultipartUploadResult"
		}
		if got.XMLName.Local != name {
			t.Errorf("root %s", got.XMLName.Local)
		}
		if got.XMLName = (xml.Name{}); got != c.want {
			t.Errorf("%T: %+v", c.m, got)
		}
	}
}

// TestS3_71: markers of parts and uploads.
func TestS3_71_MultipartListings(t *testing.T) {
	var parts struct {
		XMLName                                                xml.Name
		Bucket, Key, UploadId, StorageClass, ChecksumAlgorithm string
		PartNumberMarker, NextPartNumberMarker, MaxParts       int
		IsTruncated                                            bool
		Initiator, Owner                                       Owner
		Part                                                   []struct {
			PartNumber                         int
			LastModified, ETag, ChecksumCRC32C string
			Size                               int64
		}
	}
	in := ListPartsResult{Bucket: "b", Key: "k", UploadID: "u", Owner: Owner{ID: "o"}, PartNumberMarker: 3,
		NextPartNumber: 7,
		MaxParts:       2, Truncated: true, ChecksumAlgorithm: "CRC32C", ChecksumType: "COMPOSITE",
		Parts: []PartEntry{{7, xmlNow, "e", 5, []Checksum{{CRC32C, "v"}}}}}
	decode(t, Marshal(in), &parts)
	if parts.XMLName.Local != "ListPartsResult" || parts.PartNumberMarker != 3 || parts.NextPartNumberMarker != 7 ||
		!parts.IsTruncated || len(parts.Part) != 1 || parts.Part[0].ChecksumCRC32C != "v" ||
		parts.Part[0].ETag != `"e"` ||
		parts.StorageClass != "STANDARD" || parts.Owner.ID != "o" {
		t.Errorf("%+v", parts)
	}
	var uploads struct {
		XMLName                                                      xml.Name
		KeyMarker, UploadIdMarker, NextKeyMarker, NextUploadIdMarker string
		Prefix, Delimiter, EncodingType                              string
		MaxUploads                                                   int
		IsTruncated                                                  bool
		Upload                                                       []struct{ Key, UploadId, Initiated string }
		CommonPrefixes                                               []struct{ Prefix string }
	}
	decode(t, Marshal(ListUploadsResult{KeyMarker: "k ", UploadIDMarker: "u", NextKeyMarker: "n ",
		NextUploadIDMarker: "nu",
		Truncated:          true, EncodeURL: true,
		Uploads:  []UploadEntry{{Key: "a b", UploadID: "1", Initiated: xmlNow}},
		Prefixes: []string{"p/"}}), &uploads)
	if uploads.XMLName.Local != "ListMultipartUploadsResult" || uploads.KeyMarker != "k+" ||
		uploads.NextKeyMarker != "n+" ||
		uploads.NextUploadIdMarker != "nu" || uploads.Upload[0].Key != "a+b" || uploads.EncodingType != "url" ||
		uploads.Upload[0].Initiated != "2026-01-02T02:04:05.000Z" || uploads.CommonPrefixes[0].Prefix != "p/" {
		t.Errorf("%+v", uploads)
	}
}

func TestDeleteResult(t *testing.T) {
	in := DeleteResult{Deleted: []Deleted{{Key: "a&b"}}, Failed: []DeleteFailure{{Key: "c", Code: AccessDenied,
		Message: "no"}}}
	var got struct {
		Deleted []struct{ Key string }
		Error   []struct{ Key, Code, Message string }
	}
	decode(t, Marshal(in), &got)
	if len(got.Deleted) != 1 || got.Deleted[0].Key != "a&b" || len(got.Error) != 1 ||
		got.Error[0].Code != "AccessDenied" {
		t.Errorf("%+v", got)
	}
	in.Quiet = true
	got.Deleted, got.Error = nil, nil
	if decode(t, Marshal(in), &got); len(got.Deleted) != 0 || len(got.Error) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestS3_23: which answers have a body; an error survives the way to a client.
func TestS3_23_Errors(t *testing.T) {
	for _, c := range []struct {
		method string
		status int
		want   bool
	}{{"GET", 404, true}, {"HEAD", 404, false}, {"GET", 304, false}, {"DELETE", 204, false}, {"PUT", 412, true},
		{"GET", 100, false}} {
		if HasBody(c.method, c.status) != c.want {
			t.Errorf("%+v", c)
		}
	}
	in := New(AuthorizationHeaderMalformed, "a <b> & \x01").With("Region", "lab").Complete("/b/k&", "id-1")
	out := ReadError(400, strings.NewReader(string(in.AppendXML(nil))))
	if out.Code != in.Code || out.Message != "a <b> & \uFFFD" || out.Resource != "/b/k&" || out.RequestID != "id-1" ||
		!slices.Equal(out.Fields, in.Fields) || out.Status != 400 {
		t.Errorf("%+v", out)
	}
	for status, want := range map[int]Code{404: NoSuchKey, 403: AccessDenied, 412: PreconditionFailed,
		503: ServiceUnavailable,
		304: NotModified, 416: InvalidRange, 599: InternalError, 409: OperationAborted, 411: MissingContentLength,
		405: MethodNotAllowed, 501: NotImplemented, 400: BadRequest} {
		for _, body := range []string{"", "<html>proxy</html>", "x"} {
			if e := ReadError(status, strings.NewReader(body)); e.Code != want || e.Status != status ||
				e.Message == "" {
				t.Errorf("%d %q: %+v", status, body, e)
			}
		}
	}
	cause := errors.New("cause")
	if e := AsError(fmt.Errorf("x: %w", cause)); e.Code != InternalError || !errors.Is(e, cause) {
		t.Error(e)
	}
	if e := AsError(fmt.Errorf("x: %w", New(NoSuchKey, ""))); e.Code != NoSuchKey || !errors.Is(e, New(NoSuchKey, "")) {
		t.Error(e)
	}
	a := New(InvalidRange, "").With("A", "1").WithHeader("H", "1")
	b, c := a.With("B", "2"), a.WithHeader("I", "2")
	if len(a.Fields) != 1 || len(a.Header) != 1 || len(b.Fields) != 2 || len(c.Header) != 2 {
		t.Error("copies share state")
	}
}

const deleteBody = `<?xml version="1.0" encoding="UTF-8"?>
<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>
<Object><Key> a&amp;b&#x41; </Key><VersionId>null</VersionId></Object>
<Object><Key>c</Key><ETag>"e"</ETag><Size>5</Size><LastModifiedTime>2026-01-02T02:04:05.000Z</LastModifiedTime></Object>
<!-- comment --></Delete>
`

func TestReadDelete(t *testing.T) {
	want := DeleteRequest{Quiet: true, Objects: []DeleteEntry{{Key: " a&bA ", VersionID: "null", Size: -1},
		{Key: "c", ETag: "e", Size: 5, Modified: time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC)}}}
	for _, body := range []string{deleteBody, strings.Replace(deleteBody,
		` xmlns="http://s3.amazonaws.com/doc/2006-03-01/"`, "", 1),
		"\xef\xbb\xbf" + deleteBody, strings.Replace(deleteBody, "2026-01-02T02:04:05.000Z",
			"Fri, 02 Jan 2026 02:04:05 GMT", 1),
		strings.NewReplacer("<Delete ", "<s:Delete xmlns:s='x' ", "</Delete>", "</s:Delete>").Replace(deleteBody)} {
		got, err := ReadDelete(strings.NewReader(body))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v %v", got, err)
		}
	}
	object := "<Object><Key>k</Key></Object>"
	if got, err := ReadDelete(strings.NewReader("<Delete>" + strings.Repeat(object, 1000) + "</Delete>")); err != nil ||
		len(got.Objects) != 1000 {
		t.Error(len(got.Objects), err)
	}
	bomb := `<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>` +
		`<Delete><Object><Key>&b;</Key></Object></Delete>`
	for body, want := range map[string]Code{
		"": MalformedXML, "garbage": MalformedXML, "<Delete/>": MalformedXML, "<Delete>": MalformedXML,
		bomb:                         MalformedXML,
		"<Delete><Object/></Delete>": MalformedXML, "<Delete><Object><Key></Key></Object></Delete>": MalformedXML,
		"<Other>" + object + "</Other>": MalformedXML, deleteBody + "x": MalformedXML,
		deleteBody + "<Delete/>": MalformedXML,
		"x" + deleteBody:         MalformedXML, "<Delete>" + object + "</delete>": MalformedXML,
		"<Delete><Object><Key>&undefined;</Key></Object></Delete>":               MalformedXML,
		"<Delete><Object><Key>\x01</Key></Object></Delete>":                      MalformedXML,
		"<Delete><Quiet>perhaps</Quiet>" + object + "</Delete>":                  MalformedXML,
		"<Delete><Object><Key>k</Key><Size>x</Size></Object></Delete>":           MalformedXML,
		"<Delete>" + strings.Repeat(object, 1001) + "</Delete>":                  MalformedXML,
		"<Delete>" + strings.Repeat("<a>", 1000):                                 MalformedXML,
		strings.Repeat("<Delete>", 13) + strings.Repeat("</Delete>", 13):         MalformedXML,
		"<Delete>" + strings.Repeat("<a/>", 200000) + object + "</Delete>":       MalformedXML,
		"<Delete " + strings.Repeat("a='b' ", 2000) + ">" + object + "</Delete>": MalformedXML,
		"<Delete>" + strings.Repeat(" ", 5<<20) + object + "</Delete>":           MaxMessageLengthExceeded,
		`<?xml version="1.0" encoding="UTF-16"?><Delete>` + object + "</Delete>": MalformedXML,
	} {
		if _, err := ReadDelete(strings.NewReader(body)); !IsCode(err, want) {
			t.Errorf("%.60q: %v", body, err)
		}
	}
	// An error of the verifying reader is answered as it is; others are not the client's.
	if _, err := ReadDelete(failing{New(BadDigest, "")}); !IsCode(err, BadDigest) {
		t.Error(err)
	}
	if _, err := ReadDelete(failing{io.ErrClosedPipe}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// TestS3_70: parts with gaps, ETags quoted or not, ascending.
func TestS3_70_ReadComplete(t *testing.T) {
	part := func(n, etag, more string) string {
		return "<Part><PartNumber>" + n + "</PartNumber><ETag>" + etag + "</ETag>" + more + "</Part>"
	}
	doc := func(parts ...string) string {
		return `<CompleteMultipartUpload xmlns="` + Namespace + `">` + strings.Join(parts,
			"\n") + "</CompleteMultipartUpload>"
	}
	got, err := ReadComplete(strings.NewReader(doc(part("1", "&quot;a&quot;", ""), part("7", `"b"`,
		"<ChecksumCRC32>NSRBwg==</ChecksumCRC32>"),
		part("10000", "c", "<ChecksumSHA1></ChecksumSHA1><Unknown>x</Unknown>"))))
	want := []CompletePart{{1, "a", nil}, {7, "b", []Checksum{{CRC32, "NSRBwg=="}}}, {10000, "c", nil}}
	if err != nil || !reflect.DeepEqual(got.Parts, want) {
		t.Errorf("%+v %v", got, err)
	}
	for body, want := range map[string]Code{
		doc(): MalformedXML, doc(part("2", "a", ""), part("1", "a", "")): InvalidPartOrder,
		doc(part("1", "a", ""), part("1", "a", "")): InvalidPartOrder, doc(part("0", "a", "")): InvalidArgument,
		doc(part("10001", "a", "")): InvalidArgument, doc(part("x", "a", "")): MalformedXML, doc(part("1", "",
			"")): MalformedXML,
		doc("<Part/>"): MalformedXML, doc(part("1", "a", "<ChecksumCRC32>!</ChecksumCRC32>")): InvalidPart,
		"": MalformedXML,
	} {
		if _, err := ReadComplete(strings.NewReader(body)); !IsCode(err, want) {
			t.Errorf("%.150q: %v", body, err)
		}
	}
	var all []string
	for i := range MaxPartNumber {
		all = append(all, part(fmt.Sprint(i+1), strings.Repeat("a", 32),
			"<ChecksumCRC64NVME>AAAAAAAAAAA=</ChecksumCRC64NVME>"))
	}
	if got, err := ReadComplete(strings.NewReader(doc(all...))); err != nil || len(got.Parts) != MaxPartNumber {
		t.Error(len(got.Parts), err)
	}
}

func TestReadCreateBucket(t *testing.T) {
	for body, want := range map[string]string{
		"": "", " \n": "", "<CreateBucketConfiguration/>": "",
		"<CreateBucketConfiguration><LocationConstraint> lab\n</LocationConstraint></CreateBucketConfiguration>": "lab",
		"<CreateBucketConfiguration><LocationConstraint></LocationConstraint></CreateBucketConfiguration>":       "",
		"<CreateBucketConfiguration><LocationConstraint>A B</LocationConstraint></CreateBucketConfiguration>":    "bad",
		"<X/>": "bad", "<CreateBucketConfiguration>": "bad", strings.Repeat(" ", 70000): "bad",
	} {
		got, err := ReadCreateBucket(strings.NewReader(body))
		if err != nil {
			got = "bad"
		}
		if got != want {
			t.Errorf("%.60q: %q %v", body, got, err)
		}
	}
}
