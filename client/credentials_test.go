package client

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The oracle is the form of the AWS shared credentials file and the order of AWS's own tools: a key
// in the environment goes before a file.
func TestCredentialsOfTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	text := "# keys\n[default]\naws_access_key_id = AK1\naws_secret_access_key=S=1/+\n\n" +
		"[ other ]\r\naws_secret_access_key = S2\r\naws_access_key_id = AK2\r\naws_session_token = T2\r\n" +
		"[half]\naws_access_key_id = AK3\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, key, secret, file, profile string
		want                             Credentials
		fails                            bool
	}{
		{name: "nothing", fails: true},
		{name: "default", file: file, want: Credentials{AccessKey: "AK1", SecretKey: "S=1/+"}},
		{name: "profile", file: file, profile: "other",
			want: Credentials{AccessKey: "AK2", SecretKey: "S2", SessionToken: "T2"}},
		{name: "half a profile", file: file, profile: "half", fails: true},
		{name: "no such profile", file: file, profile: "none", fails: true},
		{name: "no such file", file: file + ".none", fails: true},
		{name: "key before file", key: "AK", secret: "S", file: file,
			want: Credentials{AccessKey: "AK", SecretKey: "S"}},
		{name: "half a key is not completed from the file", key: "AK", file: file, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", c.key)
			t.Setenv("AWS_SECRET_ACCESS_KEY", c.secret)
			t.Setenv("AWS_SESSION_TOKEN", "")
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", c.file)
			t.Setenv("AWS_PROFILE", c.profile)
			got, _, err := Config{Endpoint: "http://127.0.0.1:9000"}.resolved()
			switch {
			case c.fails && !errors.Is(err, ErrConfig):
				t.Errorf("error %v, want ErrConfig", err)
			case !c.fails && err != nil:
				t.Error(err)
			case !c.fails && got.Credentials != c.want:
				t.Errorf("got %q %q %q, want %q %q %q", got.Credentials.AccessKey, got.Credentials.SecretKey,
					got.Credentials.SessionToken, c.want.AccessKey, c.want.SecretKey, c.want.SessionToken)
			}
		})
	}
}
