package cli

import "github.com/spf13/cobra"

func (a *app) demoCommand() *cobra.Command {
	return &cobra.Command{Use: "demo", Args: args(cobra.NoArgs), RunE: func(*cobra.Command, []string) error { return nil }}
}
