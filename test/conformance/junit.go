package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"
)

// result is what became of one test.
type result struct {
	passed bool
	text   string // why it did not pass, one line
}

// maxResultText bounds the reason that is printed of a failure: enough for the assertion.
const maxResultText = 200

type junitReason struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type junitCase struct {
	Class   string       `xml:"classname,attr"`
	Name    string       `xml:"name,attr"`
	Failure *junitReason `xml:"failure"`
	Error   *junitReason `xml:"error"`
	Skipped *junitReason `xml:"skipped"`
}

type junitFile struct {
	Suites []struct {
		Cases []junitCase `xml:"testcase"`
	} `xml:"testsuite"`
}

// readJUnit adds the results of one file. A test with a result for itself and an error of its
// clean-up counts as failed.
func readJUnit(path string, results map[string]result) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("conformance: read results: %w", err)
	}
	var f junitFile
	if err := xml.Unmarshal(text, &f); err != nil {
		return fmt.Errorf("conformance: read results %s: %w", path, err)
	}
	for _, s := range f.Suites {
		for _, c := range s.Cases {
			test := c.Class[strings.LastIndexByte(c.Class, '.')+1:] + ".py::" + c.Name
			r := c.result()
			if before, ok := results[test]; ok && !before.passed {
				continue
			}
			results[test] = r
		}
	}
	return nil
}

func (c junitCase) result() result {
	switch {
	case c.Failure != nil:
		return result{text: oneLine(*c.Failure)}
	case c.Error != nil:
		return result{text: "error: " + oneLine(*c.Error)}
	case c.Skipped != nil:
		return result{text: "skipped: " + oneLine(*c.Skipped)}
	}
	return result{passed: true}
}

func oneLine(r junitReason) string {
	text := r.Message
	if text == "" {
		text = r.Text
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxResultText {
		text = strings.ToValidUTF8(text[:maxResultText], "") + "…"
	}
	return text
}
