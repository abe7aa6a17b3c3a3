// Command penstock is the object store's server and its client in one binary.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
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

// serve runs a node until ctx ends.
func serve(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	s, err := server.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	return s.Serve(ctx)
}
