package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-store/penstock/client"
)

// keysPath is where a node keeps the calls for access keys.
const keysPath = "/.penstock/admin/v1/keys"

type keyLine struct {
	Type      string     `json:"type"` // "key"
	AccessKey string     `json:"access_key"`
	SecretKey string     `json:"secret_key,omitempty"` // only when just created
	Principal string     `json:"principal"`
	Created   *time.Time `json:"created,omitempty"`
}

func (k keyLine) text() string {
	if k.SecretKey != "" {
		return fmt.Sprintf("access key  %s\nsecret key  %s\nprincipal   %s\nThe secret key is not shown again.",
			k.AccessKey, k.SecretKey, k.Principal)
	}
	at := ""
	if k.Created != nil {
		at = k.Created.UTC().Format(timeLayout)
	}
	return fmt.Sprintf("%-19s  %-24s %s", at, k.AccessKey, k.Principal)
}

func (a *app) adminCommand() *cobra.Command {
	admin := &cobra.Command{Use: "admin", Short: "administer a node"}
	key := &cobra.Command{Use: "key", Short: "access keys"}
	var principal string
	create := &cobra.Command{
		Use: "create", Short: "create an access key and show its secret once", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.createKey(c.Context(), principal) },
	}
	create.Flags().StringVar(&principal, "principal", "", "whom the key belongs to; default: a new one, for this key only")
	list := &cobra.Command{
		Use: "list", Short: "list access keys", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.listKeys(c.Context()) },
	}
	var yes bool
	remove := &cobra.Command{
		Use: "delete ACCESS-KEY", Short: "revoke an access key and end its sessions", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, list []string) error {
			if err := a.confirm(yes, "revoke "+list[0]); err != nil {
				return err
			}
			return a.withClient(func(cl *client.Client) error {
				return cl.Control(c.Context(), http.MethodDelete, keysPath+"/"+url.PathEscape(list[0]), nil, nil)
			})
		},
	}
	remove.Flags().BoolVar(&yes, "yes", false, "do not ask")
	key.AddCommand(create, list, remove)
	admin.AddCommand(key)
	return admin
}

func (a *app) withClient(use func(*client.Client) error) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	defer cl.Close()
	return use(cl)
}

func (a *app) createKey(ctx context.Context, principal string) error {
	return a.withClient(func(cl *client.Client) error {
		in := struct {
			Principal string `json:"principal,omitempty"`
		}{principal}
		var out keyLine
		if err := cl.Control(ctx, http.MethodPost, keysPath, in, &out); err != nil {
			return err
		}
		out.Type = "key"
		return a.emit(out, out.text())
	})
}

func (a *app) listKeys(ctx context.Context) error {
	return a.withClient(func(cl *client.Client) error {
		var out struct {
			Keys []keyLine `json:"keys"`
		}
		if err := cl.Control(ctx, http.MethodGet, keysPath, nil, &out); err != nil {
			return err
		}
		for _, k := range out.Keys {
			k.Type = "key"
			if err := a.emit(k, k.text()); err != nil {
				return err
			}
		}
		return nil
	})
}
