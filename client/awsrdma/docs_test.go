package awsrdma_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// TestProgramsOfTheDocument compiles and runs the whole programs of docs/sdk.md, as they stand there, against a node.
// The oracles are what they print and the server's counters.
func TestProgramsOfTheDocument(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles two programs")
	}
	text, err := os.ReadFile("../../docs/sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile(`(?m)^    package main\n(?:    .*\n|\n)*`).FindAllString(string(text), -1)
	want := [][]string{
		{`put by shm, got "a payload" by shm`},
		{"put 1048576 bytes by shm", "got 1048576 bytes by shm"},
	}
	if len(programs) != len(want) {
		t.Fatalf("docs/sdk.md has %d programs, want %d", len(programs), len(want))
	}
	n := startNode(t)
	if _, err := n.plain().CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("models")}); err != nil {
		t.Fatal(err)
	}
	for i, program := range programs {
		file := filepath.Join(t.TempDir(), "main.go")
		source := regexp.MustCompile(`(?m)^    `).ReplaceAllString(program, "")
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		run := exec.CommandContext(t.Context(), "go", "run", file)
		run.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+n.endpoint, "AWS_ACCESS_KEY_ID="+n.creds.AccessKey,
			"AWS_SECRET_ACCESS_KEY="+n.creds.SecretKey)
		out, err := run.CombinedOutput()
		if err != nil {
			t.Errorf("program %d: %v\n%s", i, err, out)
		}
		for _, words := range want[i] {
			if !strings.Contains(string(out), words) {
				t.Errorf("program %d printed %s, want %q", i, out, words)
			}
		}
	}
	for _, op := range []string{"PutObject", "GetObject"} {
		if got, want := n.payloadBytes(op, "shm"), int64(len("a payload")+1<<20); got != want {
			t.Errorf("%s: %d bytes by shm, want %d", op, got, want)
		}
	}
}
