package client

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxCredentialsBytes bounds a shared credentials file: it holds a few lines for each profile.
const maxCredentialsBytes = 1 << 20

// environmentCredentials are those that the environment names: the key itself, or else a file of keys.
func environmentCredentials() (Credentials, error) {
	c := Credentials{
		AccessKey:    os.Getenv("AWS_ACCESS_KEY_ID"),
		SecretKey:    os.Getenv("AWS_SECRET_ACCESS_KEY"),
		SessionToken: os.Getenv("AWS_SESSION_TOKEN"),
	}
	file := os.Getenv("AWS_SHARED_CREDENTIALS_FILE")
	if c.AccessKey != "" || c.SecretKey != "" || file == "" {
		return c, nil
	}
	return fileCredentials(file, firstOf(os.Getenv("AWS_PROFILE"), "default"))
}

// fileCredentials reads one profile of a file in the form of the AWS shared credentials file.
func fileCredentials(file, profile string) (Credentials, error) {
	f, err := os.Open(file)
	if err != nil {
		return Credentials{}, fmt.Errorf("%w: AWS_SHARED_CREDENTIALS_FILE: %w", ErrConfig, err)
	}
	defer f.Close()
	var c Credentials
	section := ""
	lines := bufio.NewScanner(io.LimitReader(f, maxCredentialsBytes))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSpace(strings.TrimSuffix(name, "]"))
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		if section != profile {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			c.AccessKey = value
		case "aws_secret_access_key":
			c.SecretKey = value
		case "aws_session_token":
			c.SessionToken = value
		}
	}
	if err := lines.Err(); err != nil {
		return Credentials{}, fmt.Errorf("%w: AWS_SHARED_CREDENTIALS_FILE: read %s: %w", ErrConfig, file, err)
	}
	if c.AccessKey == "" || c.SecretKey == "" {
		return Credentials{}, fmt.Errorf("%w: AWS_SHARED_CREDENTIALS_FILE: %s names no key and secret under [%s]",
			ErrConfig, file, profile)
	}
	return c, nil
}
