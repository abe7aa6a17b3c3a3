package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// The suite: where it is published, which revision is meant, and the sum of the files of it that
// run, so that a copy without history can be checked as well.
const (
	repository = "https://github.com/ceph/s3-tests.git"
	revision   = "8f0ae7b404a3a2fcf7038bf1e6bf29544fe9b6a3"
	contentSum = "ec0815bbbc5a2cb753f161b98bcf81e44cd10b02ba93b902b9b4350bbe532588"
)

// obtain puts the pinned revision into the directory to.
func obtain(ctx context.Context, from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return fmt.Errorf("conformance: make directory: %w", err)
	}
	var err error
	switch {
	case from == "":
		err = fetch(ctx, to)
	case isGit(from):
		err = export(ctx, from, to)
	default:
		err = os.CopyFS(to, os.DirFS(from))
	}
	if err != nil {
		return fmt.Errorf("conformance: get the suite: %w", err)
	}
	sum, err := sumOf(to)
	if err != nil {
		return err
	}
	if sum != contentSum {
		return fmt.Errorf("conformance: the suite in %q is not revision %.12s: its sum is %s", from, revision, sum)
	}
	return nil
}

// isGit tells a checkout or a bare git directory from a plain copy, which may lie inside another
// repository.
func isGit(path string) bool {
	if _, err := os.Stat(filepath.Join(path, ".git")); err == nil {
		return true
	}
	_, head := os.Stat(filepath.Join(path, "HEAD"))
	_, objects := os.Stat(filepath.Join(path, "objects"))
	return head == nil && objects == nil
}

// fetch gets the one revision from the public repository.
func fetch(ctx context.Context, to string) error {
	bare := to + ".git"
	for _, args := range [][]string{
		{"init", "-q", "--bare", bare},
		{"-C", bare, "fetch", "-q", "--depth", "1", repository, revision},
	} {
		if _, err := output(exec.CommandContext(ctx, "git", args...)); err != nil {
			return err
		}
	}
	return export(ctx, bare, to)
}

// export writes the files of the revision, whatever the work tree holds.
func export(ctx context.Context, from, to string) error {
	archive := to + ".tar"
	path, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	if _, err := output(exec.CommandContext(ctx, "git", "-c", "safe.directory=*", "-C", path, "archive", "-o", archive,
		revision)); err != nil {
		return err
	}
	_, err = output(exec.CommandContext(ctx, "tar", "-xf", archive, "-C", to))
	return err
}

// output runs a command and returns what it prints; an error carries what it complained of.
func output(cmd *exec.Cmd) ([]byte, error) {
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
	}
	return out, nil
}

// sumOf is the SHA-256 of the names and contents of all Python files and of pytest.ini.
func sumOf(dir string) (string, error) {
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasSuffix(path, ".py") || d.Name() == "pytest.ini" {
			names = append(names, path)
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("conformance: sum the suite: %w", err)
	}
	slices.Sort(names)
	whole := sha256.New()
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("conformance: sum the suite: %w", err)
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return "", fmt.Errorf("conformance: sum the suite: %w", err)
		}
		fmt.Fprintf(whole, "%x %s\n", sha256.Sum256(text), filepath.ToSlash(rel))
	}
	return hex.EncodeToString(whole.Sum(nil)), nil
}
