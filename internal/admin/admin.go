// Package admin is the administration API of a node: JSON over signed requests below /.penstock/admin.
//
// Called by: server, which gives it to the gateway; the gateway verifies the signature and bounds the
// body before.
//
//	POST   /.penstock/admin/v1/keys       {"principal": "name"} → 201 {"access_key", "secret_key", …}
//	GET    /.penstock/admin/v1/keys       → 200 {"keys": [{"access_key", "principal", "created"}]}
//	DELETE /.penstock/admin/v1/keys/ID    → 204
//
// Invariants:
//  1. Only the principal iam.Root gets anything but AccessDenied.
//  2. A secret is answered once, by the POST that made it.
//
// What it does not do: HTTP, signatures, anything about drives or objects yet.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-store/penstock/internal/iam"
	"github.com/penstock-store/penstock/internal/s3"
)

// Prefix is the path of the API.
const Prefix = "/.penstock/admin"

// KeysPath is where access keys are.
const KeysPath = Prefix + "/v1/keys"

// API answers requests.
type API struct{ keys *iam.Keys }

// New returns the API over the access keys of a node.
func New(keys *iam.Keys) *API { return &API{keys: keys} }

// Request is one verified request.
type Request struct {
	Method, Path string
	Principal    string
	Body         []byte
}

// Key is an access key in JSON.
type Key struct {
	AccessKey string    `json:"access_key"`
	SecretKey string    `json:"secret_key,omitempty"` // of a new key only
	Principal string    `json:"principal"`
	Created   time.Time `json:"created"`
}

// KeyList answers a list.
type KeyList struct {
	Keys []Key `json:"keys"`
}

// NewKey asks for a key. An empty principal makes a new one.
type NewKey struct {
	Principal string `json:"principal"`
}

// Answer answers a request with a status and a JSON body. Errors are *s3.Error or iam's.
func (a *API) Answer(ctx context.Context, r Request) (status int, body []byte, err error) {
	if r.Principal != iam.Root {
		return 0, nil, s3.New(s3.AccessDenied, "Administration takes a key of root.")
	}
	id, one := strings.CutPrefix(r.Path, KeysPath+"/")
	switch {
	case r.Path == KeysPath && r.Method == http.MethodGet:
		return a.list()
	case r.Path == KeysPath && r.Method == http.MethodPost:
		return a.create(ctx, r.Body)
	case one && r.Method == http.MethodDelete:
		err := a.keys.Delete(ctx, id)
		if errors.Is(err, iam.ErrNoSuchKey) { // the named key, not the one that signed
			return 0, nil, s3.New(s3.NoSuchKey, "There is no access key of this name.").Wrap(err)
		}
		if err != nil {
			return 0, nil, err
		}
		return http.StatusNoContent, nil, nil
	}
	return 0, nil, s3.New(s3.MethodNotAllowed, "Nothing is at this path.")
}

func (a *API) list() (int, []byte, error) {
	answer := KeyList{Keys: []Key{}}
	for _, k := range a.keys.List() {
		answer.Keys = append(answer.Keys, Key{AccessKey: k.ID, Principal: k.Principal, Created: k.Created})
	}
	body, err := json.Marshal(answer)
	return http.StatusOK, body, err
}

func (a *API) create(ctx context.Context, text []byte) (int, []byte, error) {
	var wanted NewKey
	if len(text) > 0 {
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.DisallowUnknownFields()
		if err := d.Decode(&wanted); err != nil {
			return 0, nil, s3.New(s3.InvalidRequest, "The body is not a request for a key.")
		}
	}
	k, err := a.keys.Create(ctx, wanted.Principal)
	if err != nil {
		return 0, nil, err
	}
	body, err := json.Marshal(Key{
		AccessKey: k.ID, SecretKey: string(k.Secret), Principal: k.Principal, Created: k.Created,
	})
	return http.StatusCreated, body, err
}
