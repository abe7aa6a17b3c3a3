// Command penstock is the object store's server and its client in one binary.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/penstock-store/penstock/internal/cli"
	"github.com/penstock-store/penstock/internal/config"
	"github.com/penstock-store/penstock/internal/server"
)

// version is set by the linker.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Main(ctx, os.Args[1:], cli.Environment{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: version, Serve: serve,
	})
	stop()
	os.Exit(code)
}

// serve runs a node until ctx ends. SIGHUP makes it read its certificates again and begin a new file of the
// access log.
func serve(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	signal.Ignore(syscall.SIGPIPE) // who reads the logs may go away; the write says so, and the node goes on
	s, err := server.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for {
			select {
			case <-hangup:
				s.Reload(ctx)
			case <-ended:
				return
			}
		}
	})
	err = s.Serve(ctx)
	close(ended)
	reloads.Wait()
	return err
}
