package vfs

import (
	"errors"
	"path"
)

// MakeDir creates dir and its missing parents durably.
func MakeDir(fs FS, dir string) error {
	dir = path.Clean(dir)
	touched := []string{path.Dir(dir)} // always: an earlier try may have ended before its sync
	for d := path.Dir(dir); d != path.Dir(d); d = path.Dir(d) {
		if _, err := fs.Stat(d); err == nil {
			break
		} else if !errors.Is(err, ErrNotExist) {
			return err
		}
		touched = append(touched, path.Dir(d))
	}
	if err := fs.MkdirAll(dir); err != nil {
		return err
	}
	for _, d := range touched {
		if err := fs.SyncDir(d); err != nil {
			return err
		}
	}
	return nil
}
