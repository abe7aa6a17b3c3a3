package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// status is what is expected of a test.
type status string

// The words of expected.txt.
const (
	pass     status = "pass"
	later    status = "later"    // concerns a feature that is not built yet, which the reason names
	excluded status = "excluded" // asks for what S3 itself does otherwise or does not have
)

// passesMark begins the reason of a test that passes although its feature is not built: what it looks
// for holds for a refusal, too. The rest of the reason says what it would need to mean something.
const passesMark = "passes:"

// line is one line of expected.txt.
type line struct {
	status status
	test   string // file::name, the file without its directory
	reason string // empty for pass
}

func (l line) passes() bool { return l.status == pass || strings.HasPrefix(l.reason, passesMark) }

func (l line) String() string {
	return strings.TrimRight(fmt.Sprintf("%-8s %s  %s", l.status, l.test, l.reason), " ")
}

// parseExpected reads the whole file; all its errors are reported at once.
func parseExpected(text []byte) (map[string]line, error) {
	lines := map[string]line{}
	var errs []error
	previous := ""
	s := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; s.Scan(); n++ {
		if s.Text() == "" || s.Text()[0] == '#' {
			continue
		}
		l, err := parseLine(s.Text())
		switch {
		case err != nil:
		case lines[l.test].test != "":
			err = fmt.Errorf("%s has two lines", l.test)
		case l.test < previous:
			err = fmt.Errorf("%s is out of order", l.test)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("conformance: expected.txt line %d: %w", n, err))
			continue
		}
		lines[l.test], previous = l, l.test
	}
	return lines, errors.Join(append(errs, s.Err())...)
}

func parseLine(text string) (line, error) {
	word, rest, _ := strings.Cut(text, " ")
	test, reason, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
	l := line{status: status(word), test: test, reason: strings.TrimSpace(reason)}
	file, name, ok := strings.Cut(test, "::")
	switch {
	case !slices.Contains([]status{pass, later, excluded}, l.status):
		return l, fmt.Errorf("status %q is none of pass, later, excluded", word)
	case !ok || name == "" || !strings.HasSuffix(file, ".py"):
		return l, fmt.Errorf("%q is not file.py::test", test)
	case l.status == pass && l.reason != "":
		return l, fmt.Errorf("%s passes and needs no reason", test)
	case l.status != pass && strings.TrimSpace(strings.TrimPrefix(l.reason, passesMark)) == "":
		return l, fmt.Errorf("%s needs a reason", test)
	case strings.ContainsRune(l.reason, '?'):
		return l, fmt.Errorf("the reason of %s is open", test)
	}
	return l, nil
}

// counts are how many lines of each status there are.
type counts struct{ pass, later, excluded int }

func count(lines map[string]line) (c counts) {
	for _, l := range lines {
		switch l.status {
		case pass:
			c.pass++
		case later:
			c.later++
		case excluded:
			c.excluded++
		}
	}
	return c
}

func (c counts) String() string {
	return fmt.Sprintf("%d tests: %d pass, %d later, %d excluded", c.pass+c.later+c.excluded, c.pass, c.later,
		c.excluded)
}
