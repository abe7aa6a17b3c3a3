package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock-store/penstock/client"
	"github.com/penstock-store/penstock/internal/config"
)

// Exit codes.
const (
	ExitOK       = 0
	ExitFailure  = 1 // the operation failed, or a bound of the bench was missed
	ExitUsage    = 2 // wrong arguments or configuration; nothing was done
	ExitNotFound = 3 // bucket or object does not exist
	ExitDenied   = 4 // credentials or permission
	ExitPartial  = 5 // some of several items failed; each was named on stderr
)

// Environment is what the commands get from outside.
type Environment struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Version        string
	// Serve runs a node until ctx ends. It is what `penstock serve` calls.
	Serve func(ctx context.Context, cfg config.Config, log *slog.Logger) error
}

// usageError ends with ExitUsage.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errPartial says that items failed and were named already.
var errPartial = errors.New("some items failed")

// silentError ends with the exit code of its cause, which the command has named already.
type silentError struct{ error }

func (s silentError) Unwrap() error { return s.error }

// app is one run of the binary.
type app struct {
	env      Environment
	json     bool
	quiet    bool
	verbose  bool
	endpoint string
	region   string
	fabric   string
	strict   bool // no HTTP fallback

	rdmaDevices []string
	dcKey       string

	caBundle, clientCert, clientKey string // PEM files
}

// Main runs one command line (without the program's name) and returns its exit code.
func Main(ctx context.Context, args []string, env Environment) int {
	a := &app{env: env}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	err := root.ExecuteContext(ctx)
	code := exitCode(err)
	var silent silentError
	if err != nil && !errors.As(err, &silent) {
		fmt.Fprintf(env.Stderr, "penstock: %v\n", err)
	}
	return code
}

func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage), errors.Is(err, client.ErrConfig), errors.Is(err, config.ErrInvalid):
		return ExitUsage
	case errors.Is(err, errPartial):
		return ExitPartial
	case errors.Is(err, client.ErrNotFound):
		return ExitNotFound
	case errors.Is(err, client.ErrAccessDenied):
		return ExitDenied
	}
	return ExitFailure
}

const rootHelp = `penstock is an S3 object store that moves payloads by one-sided transfers, and its client.

Clients read AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_SESSION_TOKEN; without a key in these, the file AWS_SHARED_CREDENTIALS_FILE, profile AWS_PROFILE.
AWS_CA_BUNDLE names the authorities of HTTPS endpoints, instead of the system's.
Objects are written s3://bucket/key.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 access denied, 5 some items failed.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "penstock",
		Short:         "an S3 object store with one-sided transfers, and its client",
		Long:          rootHelp,
		Version:       firstOf(a.env.Version, "unknown"),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          args(cobra.NoArgs),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "one JSON object per line on stdout")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress, no notes")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "log what the client does to stderr")
	f.StringVar(&a.endpoint, "endpoint-url", "", "endpoint, instead of AWS_ENDPOINT_URL")
	f.StringVar(&a.region, "region", "", "AWS region, instead of AWS_REGION")
	f.StringVar(&a.caBundle, "ca-bundle", "", "PEM file of authorities for HTTPS, instead of AWS_CA_BUNDLE")
	f.StringVar(&a.clientCert, "client-cert", "", "PEM file of a certificate to show to the node")
	f.StringVar(&a.clientKey, "client-key", "", "PEM file of its key")
	f.StringVar(&a.fabric, "fabric", "auto",
		"path of payloads: auto, shm, rc, tcp, dc (not yet run on hardware) or http")
	f.StringSliceVar(&a.rdmaDevices, "rdma-device", nil,
		"adapter or adapter/port of this machine for rc and dc, as mlx5_0 or mlx5_0/1; default: all")
	f.StringVar(&a.dcKey, "dc-key", client.DefaultDCKey, "access key for dc, as rdma.dc_key of the node")
	f.BoolVar(&a.strict, "no-fallback", false, "fail where a fabric declines, instead of using HTTP")
	root.AddCommand(a.serveCommand(), a.cpCommand(), a.lsCommand(), a.catCommand(), a.rmCommand(), a.mbCommand(),
		a.rbCommand(), a.statCommand(), a.benchCommand(), a.doctorCommand(), a.configCommand(), a.adminCommand(),
		a.demoCommand())
	return root
}

// args wraps cobra's checks, so that they end with ExitUsage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, list []string) error {
		if err := check(c, list); err != nil {
			return usageError{err}
		}
		return nil
	}
}

func (a *app) logger() *slog.Logger {
	if !a.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(a.env.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (a *app) clientConfig() client.Config {
	return client.Config{
		Endpoint: a.endpoint, AWSRegion: a.region, Fabric: client.Fabric(a.fabric),
		AllowHTTPFallback: !a.strict, Logger: a.logger(),
		CABundle: a.caBundle, ClientCert: a.clientCert, ClientKey: a.clientKey,
		RDMADevices: a.rdmaDevices, DCKey: a.dcKey,
	}
}

// connect returns a client; the caller closes it.
func (a *app) connect() (*client.Client, error) {
	if a.fabric == client.PathDC {
		a.note("DC: not yet run on hardware")
		if a.dcKey == client.DefaultDCKey {
			a.note("dc has the access key that everybody knows: set --dc-key, and rdma.dc_key of the node")
		}
	}
	return client.New(a.clientConfig())
}

// note writes a line for people to stderr.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.env.Stderr, format+"\n", args...)
	}
}

// complain names a failed item on stderr, also when quiet.
func (a *app) complain(err error) { fmt.Fprintf(a.env.Stderr, "penstock: %v\n", err) }

// emit writes one result: v as a JSON line, or the text.
func (a *app) emit(v any, text string) error {
	if !a.json {
		_, err := io.WriteString(a.env.Stdout, text+"\n")
		return err
	}
	e := json.NewEncoder(a.env.Stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// onTerminal tells whether w is a terminal.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
