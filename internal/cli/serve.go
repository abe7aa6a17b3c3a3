package cli

import (
	"errors"
	"flag"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock-store/penstock/internal/certs"
	"github.com/penstock-store/penstock/internal/config"
)

// configFlags adds the settings of a node to a command.
type configFlags struct {
	file  string
	flags *config.Flags
}

func addConfigFlags(cmd *cobra.Command) *configFlags {
	f := &configFlags{}
	set := flag.NewFlagSet("config", flag.ContinueOnError)
	f.flags = config.RegisterFlags(set)
	cmd.Flags().StringVar(&f.file, "config", "", "YAML file with settings; flags override it")
	cmd.Flags().AddGoFlagSet(set)
	return f
}

func (f *configFlags) load() (config.Config, error) {
	return config.Load(f.file, f.flags, os.Getenv)
}

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve --data DIR",
		Short: "run a node",
		Args:  args(cobra.NoArgs),
	}
	f := addConfigFlags(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := f.load()
		if err != nil {
			return err
		}
		if a.env.Serve == nil {
			return errors.New("this binary has no server")
		}
		return a.env.Serve(c.Context(), cfg, a.serverLogger(cfg.Log))
	}
	return cmd
}

func (a *app) serverLogger(l config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		level = slog.LevelInfo // Validate has accepted the word
	}
	opts := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.env.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(a.env.Stderr, opts))
}

// checkCertificates reads the files that the settings name.
func checkCertificates(h config.HTTP) error {
	o := certs.Options{ClientCA: h.ClientCA, ClientAuth: h.ClientAuth}
	for _, p := range h.TLSPairs() {
		o.Pairs = append(o.Pairs, certs.Pair{Cert: p[0], Key: p[1]})
	}
	return certs.Check(o)
}

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "check or print the settings of a node"}
	check := &cobra.Command{Use: "check", Short: "load the settings and say what is wrong", Args: args(cobra.NoArgs)}
	checkFlags := addConfigFlags(check)
	check.RunE = func(*cobra.Command, []string) error {
		cfg, err := checkFlags.load()
		if err != nil {
			return err
		}
		if err := checkCertificates(cfg.HTTP); err != nil {
			return usageError{err}
		}
		return a.emit(struct {
			OK bool `json:"ok"`
		}{true}, "ok")
	}
	show := &cobra.Command{Use: "print", Short: "print the effective settings as YAML", Args: args(cobra.NoArgs)}
	showFlags := addConfigFlags(show)
	show.RunE = func(*cobra.Command, []string) error {
		cfg, err := showFlags.load()
		if err != nil {
			return err
		}
		return cfg.Print(a.env.Stdout)
	}
	cmd.AddCommand(check, show)
	return cmd
}
