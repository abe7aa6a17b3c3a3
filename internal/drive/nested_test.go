package drive

import (
	"testing"

	"github.com/penstock-store/penstock/internal/vfs/crashfs"
)

// TestNestedDirectorySurvives: Format makes the parents of the directory, too, and all of them have to
// be durable before a record is acknowledged.
func TestNestedDirectorySurvives(t *testing.T) {
	fs := crashfs.New(crashfs.Options{})
	cfg := config(fs, "mnt/disks/one/drive")
	_, err := Format(cfg)
	must(t, err)
	d := openDrive(t, cfg)
	must(t, store(d, record(1, 5000), payload(1, 5000)))
	cfg.FS = fs.Image(crashfs.LoseAll, 1) // the power fails
	checkStored(t, openDrive(t, cfg), 1, 5000)
}
