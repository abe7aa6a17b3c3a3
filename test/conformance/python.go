package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed requirements.txt
var requirements []byte

// environment returns the Python of a virtual environment that holds the pinned requirements, made
// when it is missing or was made for others.
func environment(ctx context.Context, cache string) (python string, err error) {
	cache, err = filepath.Abs(cache)
	if err != nil {
		return "", fmt.Errorf("conformance: make the Python environment: %w", err)
	}
	env := filepath.Join(cache, "python")
	python = filepath.Join(env, "bin", "python")
	stamp := filepath.Join(env, "requirements.txt") // written last
	if have, err := os.ReadFile(stamp); err == nil && string(have) == string(requirements) {
		return python, nil
	}
	wanted := filepath.Join(cache, "requirements.txt")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("conformance: make the Python environment: %w", err)
	}
	if err := os.WriteFile(wanted, requirements, 0o644); err != nil {
		return "", fmt.Errorf("conformance: make the Python environment: %w", err)
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", env},
		{python, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check", "--no-deps", "-r", wanted},
	} {
		if _, err := output(exec.CommandContext(ctx, args[0], args[1:]...)); err != nil {
			return "", fmt.Errorf("conformance: make the Python environment: %w", err)
		}
	}
	if err := os.WriteFile(stamp, requirements, 0o644); err != nil {
		return "", fmt.Errorf("conformance: make the Python environment: %w", err)
	}
	return python, nil
}
