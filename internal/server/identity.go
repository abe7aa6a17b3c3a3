package server

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock-store/penstock/internal/drive"
)

// identityName is the file in the data directory that says who this node is.
const identityName = "node"

// errIdentity says that the file cannot be used.
var errIdentity = errors.New("server: node file is damaged")

// identity is what a node is for ever.
type identity struct {
	Node  string     // 32 hex digits
	Set   drive.UUID // the set that its drives belong to
	Drive drive.UUID // zero until metadata and drive are bound to each other
}

type identityJSON struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	Set     string `json:"set"`
	Drive   string `json:"drive,omitempty"`
}

// loadIdentity reads the file, or makes one at the first start.
func loadIdentity(dir string) (identity, error) {
	text, err := os.ReadFile(filepath.Join(dir, identityName))
	if errors.Is(err, os.ErrNotExist) {
		var node [16]byte
		id := identity{}
		_, _ = rand.Read(node[:]) // never returns an error
		_, _ = rand.Read(id.Set[:])
		id.Node = hex.EncodeToString(node[:])
		return id, id.save(dir)
	}
	if err != nil {
		return identity{}, err
	}
	return parseIdentity(text)
}

func parseIdentity(text []byte) (identity, error) {
	var j identityJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return identity{}, fmt.Errorf("%w: %w", errIdentity, err)
	}
	id := identity{Node: j.Node}
	if j.Version != 1 || len(j.Node) != 32 || !fromHex(id.Set[:], j.Set) {
		return identity{}, fmt.Errorf("%w: version %d", errIdentity, j.Version)
	}
	if j.Drive != "" && !fromHex(id.Drive[:], j.Drive) {
		return identity{}, fmt.Errorf("%w: drive id", errIdentity)
	}
	return id, nil
}

func fromHex(dst []byte, text string) bool {
	p, err := hex.DecodeString(text)
	return err == nil && copy(dst, p) == len(dst) && len(p) == len(dst)
}

// save writes the file whole and durably.
func (id identity) save(dir string) (err error) {
	j := identityJSON{Version: 1, Node: id.Node, Set: id.Set.String()}
	if id.Drive != (drive.UUID{}) {
		j.Drive = id.Drive.String()
	}
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, identityName+".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), filepath.Join(dir, identityName)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
