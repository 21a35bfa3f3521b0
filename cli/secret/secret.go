// Package secret has `r secret`: values that the egress proxy adds to requests of
// sandboxes.
package secret

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("secret", "Secrets that sandboxes use without having them", newSet(e), newList(e), newDelete(e))
}

func newSet(e *command.Env) *cobra.Command {
	var from string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set a secret",
		Long: `Sets a secret of the project to the input, without the line break at its end. The server encrypts it, and never shows it.
Only requests to its hosts can get it; to change them, set the value again with them. A change counts for the next request
that the secret is added to (r sandbox run --inject-secret).`,
		Example: "  r secret set openai --hosts api.openai.com < key.txt\n  r secret set maps --hosts maps.example.com,'*.example.org' --from-env MAPS_KEY",
		Args:    command.Args(1, 1, "NAME"),
		RunE:    func(cmd *cobra.Command, args []string) error { return set(cmd.Context(), e, args[0], from, hosts) },
	}
	cmd.Flags().StringVar(&from, "from-env", "", "environment variable to take the value from")
	cmd.Flags().StringSliceVar(&hosts, "hosts", nil, "hosts whose requests may get it, or *.DOMAIN")
	return cmd
}

func set(ctx context.Context, e *command.Env, name, from string, hosts []string) error {
	if len(hosts) == 0 {
		return exit.With(exit.Usage, errs.New(errs.InvalidArgument, "say for which hosts it is: --hosts api.example.com,'*.example.org'").
			WithHint("a secret variable of an app is set by `r env set --secret NAME`"))
	}
	value, err := read(e, from)
	if err != nil {
		return err
	}
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := secret.NewSecretsClient(c).Set(ctx, &secret.SetSecretRequest{Project: e.Project(), Secret: name, Value: value, Hosts: hosts})
	if err != nil {
		return err
	}
	s, err := entity.Decode[secret.Secret](&resp.Secret)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(s)
	}
	e.Printf("%s set the secret %s for %s\n", e.Paint(console.Green, "✓"), s.Name, strings.Join(s.Spec.Hosts, ", "))
	return nil
}

// read returns the value from an environment variable, or from the input, on a
// terminal without showing it.
func read(e *command.Env, from string) (string, error) {
	if from != "" {
		value, ok := os.LookupEnv(from)
		if !ok {
			return "", exit.Usagef("%s is not set in this environment", from)
		}
		return value, nil
	}
	return e.ReadSecret("value", secret.MaxValue)
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*secret.Secret, error) {
		all, _, err := command.All[secret.Secret](ctx, e, entity.Query{})
		slices.SortFunc(all, func(a, b *secret.Secret) int { return cmp.Compare(a.Name, b.Name) })
		return all, err
	}
	return command.List(e, "List the names of the secrets", []string{secret.KindSecret}, load, func(_ context.Context, all []*secret.Secret) error {
		if len(all) == 0 && e.Terminal {
			e.Notef("there are no secrets: r secret set makes one\n")
			return nil
		}
		var rows [][]string
		for _, s := range all {
			rows = append(rows, []string{s.Name, strings.Join(s.Spec.Hosts, ","), schema.CellAge(s.Spec.ChangedAt, time.Now()), schema.CellAge(s.CreatedAt, time.Now())})
		}
		e.Table([]string{"NAME", "HOSTS", "CHANGED", "AGE"}, rows)
		return nil
	})
}

func newDelete(e *command.Env) *cobra.Command {
	return command.Delete(e, secret.SecretKind, "secret", "Delete a secret",
		"Deletes a secret. From then on requests of sandboxes to which it would be added are refused.",
		func(ctx context.Context, c *rpc.Client, name string) error {
			return secret.NewSecretsClient(c).Delete(ctx, &secret.SecretRequest{Project: e.Project(), Secret: name})
		})
}
