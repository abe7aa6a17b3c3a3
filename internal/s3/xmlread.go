package s3

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	// maxDeleteBody fits 1000 keys of 1024 bytes, every byte written as a character reference, nearly.
	maxDeleteBody = 4 << 20
	// maxCompleteBody fits 10000 parts with all checksums.
	maxCompleteBody = 4 << 20
	// maxSmallBody bounds bodies of fixed shape.
	maxSmallBody = 64 << 10
	// maxXMLDepth bounds nesting; S3 messages have up to 5 levels.
	maxXMLDepth = 12
	// maxXMLElements fits 10000 parts of 8 elements and bounds the tree to some 10 MiB.
	maxXMLElements = 100_000
	// maxXMLTag bounds a tag with its attributes, a comment or a CDATA section: a parser keeps attributes
	// in many times their size.
	maxXMLTag = 8 << 10

	maxDeleteObjects = 1000
)

// element is one element of a request body: text or children. Attributes are ignored.
type element struct {
	name     string
	text     []byte
	children []*element
}

// child returns the text of the first child of a name.
func (e *element) child(name string) (string, bool) {
	for _, c := range e.children {
		if c.name == name {
			return string(c.text), true
		}
	}
	return "", false
}

// readBody reads a whole body of at most limit bytes, so that a verifying reader sees its end.
func readBody(r io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	var e *Error
	switch {
	case errors.As(err, &e):
		return nil, e
	case err != nil:
		return nil, fmt.Errorf("s3: read XML body: %w", err)
	case int64(len(body)) > limit:
		return nil, New(MaxMessageLengthExceeded, "")
	}
	return body, nil
}

// parseXML reads a document whose root has a name. Namespaces are not looked at. Declarations of
// types and entities are refused, so nothing can expand.
func parseXML(body []byte, root string) (*element, error) {
	d := xml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))))
	if !shortTags(body) {
		return nil, New(MalformedXML, "")
	}
	top := &element{}
	elements := 0
	stack := make([]*element, 1, maxXMLDepth+1)
	stack[0] = top
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, New(MalformedXML, "").Wrap(err)
		}
		at := stack[len(stack)-1]
		switch t := token.(type) {
		case xml.StartElement:
			if elements++; elements > maxXMLElements {
				return nil, New(MalformedXML, "")
			}
			if len(stack) > maxXMLDepth || at == top && len(top.children) > 0 {
				return nil, New(MalformedXML, "")
			}
			e := &element{name: t.Name.Local}
			at.children = append(at.children, e)
			stack = append(stack, e)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		case xml.CharData:
			if at == top && len(bytes.TrimSpace(t)) > 0 {
				return nil, New(MalformedXML, "")
			}
			at.text = append(at.text, t...)
		case xml.Directive:
			return nil, New(MalformedXML, "A document type is not allowed.")
		}
	}
	if len(top.children) != 1 || top.children[0].name != root {
		return nil, New(MalformedXML, "")
	}
	return top.children[0], nil
}

// shortTags says whether every "<" has its ">" within maxXMLTag bytes.
func shortTags(body []byte) bool {
	for {
		i := bytes.IndexByte(body, '<')
		if i < 0 {
			return true
		}
		body = body[i:]
		end := bytes.IndexByte(body[:min(len(body), maxXMLTag)], '>')
		if end < 0 {
			return false
		}
		body = body[end+1:]
	}
}

// DeleteRequest is the body of DeleteObjects.
type DeleteRequest struct {
	Quiet   bool
	Objects []DeleteEntry
}

// DeleteEntry is one object to delete. The key is as given: check it by CheckKey for its own answer.
type DeleteEntry struct {
	Key, VersionID string
	ETag           string    // condition: "" not given
	Size           int64     // condition: < 0 not given
	Modified       time.Time // condition: zero not given
}

// ReadDelete reads a Delete body: 1 to 1000 objects.
func ReadDelete(r io.Reader) (DeleteRequest, error) {
	body, err := readBody(r, maxDeleteBody)
	if err != nil {
		return DeleteRequest{}, err
	}
	root, err := parseXML(body, "Delete")
	if err != nil {
		return DeleteRequest{}, err
	}
	var out DeleteRequest
	for _, c := range root.children {
		switch c.name {
		case "Quiet":
			switch strings.ToLower(strings.TrimSpace(string(c.text))) {
			case "true":
				out.Quiet = true
			case "false", "":
			default:
				return DeleteRequest{}, New(MalformedXML, "")
			}
		case "Object":
			entry, err := readDeleteEntry(c)
			if err != nil {
				return DeleteRequest{}, err
			}
			if out.Objects = append(out.Objects, entry); len(out.Objects) > maxDeleteObjects {
				return DeleteRequest{}, New(MalformedXML, "At most 1000 objects can be deleted at once.")
			}
		}
	}
	if len(out.Objects) == 0 {
		return DeleteRequest{}, New(MalformedXML, "The request names no object.")
	}
	return out, nil
}

func readDeleteEntry(c *element) (DeleteEntry, error) {
	entry := DeleteEntry{Size: -1}
	entry.Key, _ = c.child("Key")
	if entry.Key == "" {
		return DeleteEntry{}, New(MalformedXML, "An object has no key.")
	}
	entry.VersionID, _ = c.child("VersionId")
	if tag, ok := c.child("ETag"); ok {
		if entry.ETag = TrimETag(tag); entry.ETag == "" { // without it, more would be deleted than was asked for
			return DeleteEntry{}, New(MalformedXML, "The ETag of an object is empty.")
		}
	}
	if s, ok := c.child("Size"); ok {
		if entry.Size, ok = parseDecimal(strings.TrimSpace(s)); !ok {
			return DeleteEntry{}, New(MalformedXML, "")
		}
	}
	if s, ok := c.child("LastModifiedTime"); ok {
		t, err := parseXMLTime(strings.TrimSpace(s))
		if err != nil {
			return DeleteEntry{}, New(MalformedXML, "")
		}
		entry.Modified = t
	}
	return entry, nil
}

// parseXMLTime reads ISO 8601 or, as some SDKs send it here, the form of HTTP headers.
func parseXMLTime(s string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t.UTC(), nil
	}
	t, err := time.Parse("Mon, 02 Jan 2006 15:04:05 GMT", s)
	return t.UTC(), err
}

// CompletePart is one part of a CompleteRequest.
type CompletePart struct {
	Number    int
	ETag      string // quotes removed
	Checksums []Checksum
}

// CompleteRequest is the body of CompleteMultipartUpload.
type CompleteRequest struct{ Parts []CompletePart }

// ReadComplete reads a CompleteMultipartUpload body: 1 to 10000 parts, ascending.
func ReadComplete(r io.Reader) (CompleteRequest, error) {
	body, err := readBody(r, maxCompleteBody)
	if err != nil {
		return CompleteRequest{}, err
	}
	root, err := parseXML(body, "CompleteMultipartUpload")
	if err != nil {
		return CompleteRequest{}, err
	}
	var out CompleteRequest
	previous := 0
	for _, c := range root.children {
		if c.name != "Part" {
			continue
		}
		p, err := readCompletePart(c)
		if err != nil {
			return CompleteRequest{}, err
		}
		if p.Number <= previous {
			return CompleteRequest{}, New(InvalidPartOrder, "")
		}
		previous = p.Number
		out.Parts = append(out.Parts, p)
	}
	if len(out.Parts) == 0 {
		return CompleteRequest{}, New(MalformedXML, "The request names no part.")
	}
	return out, nil
}

func readCompletePart(c *element) (CompletePart, error) {
	var p CompletePart
	number, _ := c.child("PartNumber")
	n, ok := parseDecimal(strings.TrimSpace(number))
	if !ok {
		return p, New(MalformedXML, "A part has no number.")
	}
	if n < 1 || n > MaxPartNumber {
		return p, New(InvalidArgument, "The part number must be 1 to 10000.").With("ArgumentName", "partNumber")
	}
	p.Number = int(n)
	tag, _ := c.child("ETag")
	if p.ETag = TrimETag(tag); p.ETag == "" {
		return p, New(MalformedXML, "A part has no ETag.")
	}
	for _, a := range Algorithms() {
		v, ok := c.child(a.Element())
		if v = strings.TrimSpace(v); !ok || v == "" {
			continue
		}
		if _, ok := a.decode(v); !ok {
			return p, New(InvalidPart, "A part's "+a.String()+" is not a valid checksum.")
		}
		p.Checksums = append(p.Checksums, Checksum{a, v})
	}
	return p, nil
}

// ReadCreateBucket reads a CreateBucketConfiguration body; an empty body gives "".
func ReadCreateBucket(r io.Reader) (awsRegion string, err error) {
	body, err := readBody(r, maxSmallBody)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return "", err
	}
	root, err := parseXML(body, "CreateBucketConfiguration")
	if err != nil {
		return "", err
	}
	awsRegion, _ = root.child("LocationConstraint")
	if awsRegion = strings.TrimSpace(awsRegion); awsRegion != "" && (len(awsRegion) > 64 || !isLowerToken(awsRegion)) {
		return "", New(InvalidLocationConstraint, "").With("LocationConstraint", awsRegion)
	}
	return awsRegion, nil
}

// ReadError reads an error answer, for clients. A body that is no error document, as after HEAD,
// gives a code made from the status.
func ReadError(status int, r io.Reader) *Error {
	e := &Error{Code: codeOfStatus(status), Status: status}
	e.Message = codeTable[e.Code].message
	body, err := readBody(r, maxSmallBody)
	if err != nil {
		return e.Wrap(err)
	}
	root, err := parseXML(body, "Error")
	if err != nil {
		return e
	}
	for _, c := range root.children {
		text := string(c.text)
		switch c.name {
		case "Code":
			e.Code = Code(text)
		case "Message":
			e.Message = text
		case "Resource":
			e.Resource = text
		case "RequestId":
			e.RequestID = text
		case "HostId":
			e.HostID = text
		default:
			e.Fields = append(e.Fields, Field{c.name, text})
		}
	}
	return e
}

func codeOfStatus(status int) Code {
	switch status {
	case 304:
		return NotModified
	case 400:
		return BadRequest
	case 403:
		return AccessDenied
	case 404:
		return NoSuchKey
	case 405:
		return MethodNotAllowed
	case 409:
		return OperationAborted
	case 411:
		return MissingContentLength
	case 412:
		return PreconditionFailed
	case 416:
		return InvalidRange
	case 501:
		return NotImplemented
	case 503:
		return ServiceUnavailable
	}
	return InternalError
}
