package client

import (
	"encoding/xml"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestDeleteManyReachesEveryKey deletes keys of which some have no form in XML 1.0; a decoder of the
// standard library and the request path say what the server would delete.
func TestDeleteManyReachesEveryKey(t *testing.T) {
	var deleted []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			deleted = append(deleted, strings.TrimPrefix(r.URL.Path, "/b/"))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		var in struct{ Object []struct{ Key string } }
		if err := xml.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		for _, o := range in.Object {
			deleted = append(deleted, o.Key)
		}
		_, _ = w.Write([]byte("<DeleteResult/>"))
	}))
	defer server.Close()
	c, err := New(Config{
		Endpoint: server.URL, Fabric: HTTP, Credentials: Credentials{AccessKey: "a", SecretKey: "s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	keys := []string{"plain", "\x01", "a\x00b", "tab\tline\nreturn\r", "<&>'\"", "\x1f/\uFFFE", "\uFFFD", "é 😀"}
	failures, err := c.DeleteMany(t.Context(), "b", keys)
	if err != nil || len(failures) > 0 {
		t.Fatalf("%v %v", failures, err)
	}
	slices.Sort(deleted)
	if want := slices.Sorted(slices.Values(keys)); !slices.Equal(deleted, want) {
		t.Errorf("deleted %q, want %q", deleted, want)
	}
}
