package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// compare prints what differs, then the numbers. It fails when anything differs.
func compare(out io.Writer, expected map[string]line, collected []string, results map[string]result) error {
	failed := 0
	deviate := func(format string, args ...any) {
		failed++
		fmt.Fprintf(out, format+"\n", args...)
	}
	known := map[string]bool{}
	for _, test := range collected {
		known[test] = true
		if _, ok := expected[test]; !ok {
			deviate("UNLISTED %s: no line in expected.txt", test)
		}
	}
	passed, skipped := 0, 0
	for _, test := range slices.Sorted(maps.Keys(expected)) {
		l := expected[test]
		r, ran := results[test]
		switch {
		case !known[test]:
			deviate("STALE    %s: the suite has no such test", test)
		case l.status == pass && !ran:
			deviate("FAIL     %s: it did not run", test)
		case l.status == pass && !r.passed:
			deviate("FAIL     %s: %s", test, r.text)
		case l.status == pass:
			passed++
		case ran && r.passed && !l.passes():
			deviate("PASSES   %s: expected %s, %s", test, l.status, l.reason)
		default:
			skipped++
			if ran && !r.passed && l.passes() {
				fmt.Fprintf(out, "NOTE     %s: no longer passes without its feature: %s\n", test, r.text)
			}
		}
	}
	fmt.Fprintf(out, "expected at revision %.12s: %s; %d ran\n", revision, count(expected), len(results))
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 {
		return errDeviates
	}
	return nil
}

// propose prints expected.txt as the results suggest it. What passes becomes pass, unless its line
// says that it passes for another reason; a failure without a reason gets one that does not parse, so
// that somebody has to find it.
func propose(out io.Writer, expected map[string]line, collected []string, results map[string]result) error {
	for _, test := range slices.Sorted(slices.Values(collected)) {
		l, listed := expected[test]
		l.test = test
		r, ran := results[test]
		switch {
		case ran && r.passed && !l.passes():
			l.status, l.reason = pass, ""
		case ran && !r.passed && l.status == pass, !listed:
			l.status, l.reason = later, "? "+r.text
		}
		if _, err := fmt.Fprintln(out, l); err != nil {
			return fmt.Errorf("conformance: print proposal: %w", err)
		}
	}
	return nil
}
