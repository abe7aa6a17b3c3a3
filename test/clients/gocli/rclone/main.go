// Command rclone is rclone's own command line with the two backends and the few commands that the
// runs of clients need: a whole rclone takes minutes to build.
//
// Called by: the driver in test/clients, as a process.
//
// What it does not do: anything that is not rclone's.
package main

import (
	_ "github.com/rclone/rclone/backend/local" // the side of files
	_ "github.com/rclone/rclone/backend/s3"    // the side under test
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/backend"
	_ "github.com/rclone/rclone/cmd/cat"
	_ "github.com/rclone/rclone/cmd/check"
	_ "github.com/rclone/rclone/cmd/copy"
	_ "github.com/rclone/rclone/cmd/copyto"
	_ "github.com/rclone/rclone/cmd/delete"
	_ "github.com/rclone/rclone/cmd/deletefile"
	_ "github.com/rclone/rclone/cmd/hashsum"
	_ "github.com/rclone/rclone/cmd/link"
	_ "github.com/rclone/rclone/cmd/lsjson"
	_ "github.com/rclone/rclone/cmd/mkdir"
	_ "github.com/rclone/rclone/cmd/purge"
	_ "github.com/rclone/rclone/cmd/rcat"
	_ "github.com/rclone/rclone/cmd/rmdir"
	_ "github.com/rclone/rclone/cmd/sync"
	_ "github.com/rclone/rclone/cmd/touch"
	_ "github.com/rclone/rclone/cmd/version"
)

func main() { cmd.Main() }
