package arena

import (
	"context"
	"fmt"
	"io"
)

// SectionSink returns a view of s that starts at position base. Its Done does nothing: the owner
// of s calls s.Done. The view is a Mapper exactly when s is one.
func SectionSink(s Sink, base int64) Sink {
	if m, ok := s.(Mapper); ok {
		return mappedSection{section{s, base}, m}
	}
	return section{s, base}
}

type section struct {
	sink Sink
	base int64
}

func (s section) Alloc(ctx context.Context) (Buffer, error) { return s.sink.Alloc(ctx) }

func (s section) Deliver(ctx context.Context, off int64, b Buffer) error {
	return s.sink.Deliver(ctx, s.base+off, b)
}

func (section) Done(context.Context) error { return nil }

type mappedSection struct {
	section
	mapper Mapper
}

func (s mappedSection) Map(off int64, n int) ([]byte, error) { return s.mapper.Map(s.base+off, n) }

func (s mappedSection) Unmap(off int64, n int, v Verdict) {
	s.mapper.Unmap(s.base+off, n, v)
}

// Sections cuts a Source into consecutive Sources, one per chunk. A section is read to its io.EOF
// before the next one is taken. Not safe for concurrent use.
type Sections struct {
	src  Source
	left int64 // bytes that no section was made for
	open int64 // bytes of the section under way that were not yielded yet
	err  error // final
}

// NewSections starts cutting src at its first byte.
func NewSections(src Source) *Sections { return &Sections{src: src, left: src.Size()} }

// Left is the number of bytes after the sections taken so far.
func (s *Sections) Left() int64 { return s.left }

// Section returns the next min(n, Left) bytes as a Source; n > 0. A buffer is never split, so n is
// a multiple of the source's buffer size (chunk.MaxBytes is one of every share's), unless it is
// the rest. The io.EOF of the last section comes only after the source's own, so a source that
// carries more than its size fails the last section.
func (s *Sections) Section(n int64) Source {
	if s.open != 0 && s.err == nil {
		s.err = fmt.Errorf("arena: section taken with %d bytes of the previous one unread", s.open)
	}
	n = min(n, s.left)
	s.left -= n
	s.open = n
	return &sourceSection{parent: s, size: n}
}

type sourceSection struct {
	parent *Sections
	size   int64
}

func (c *sourceSection) Size() int64 { return c.size }

func (c *sourceSection) Next(ctx context.Context) (Buffer, error) {
	s := c.parent
	switch {
	case s.err != nil:
		return Buffer{}, s.err
	case s.open == 0 && s.left > 0:
		return Buffer{}, io.EOF
	}
	b, err := s.src.Next(ctx)
	switch {
	case err == io.EOF && s.open > 0:
		s.err = fmt.Errorf("arena: source ends with %d bytes missing: %w", s.open+s.left, io.ErrUnexpectedEOF)
		return Buffer{}, s.err
	case err != nil:
		s.err = err
		return Buffer{}, err
	case int64(b.Len()) > s.open:
		b.Release()
		s.err = fmt.Errorf("arena: buffer of %d bytes crosses the border of its section", b.Len())
		return Buffer{}, s.err
	}
	s.open -= int64(b.Len())
	return b, nil
}
