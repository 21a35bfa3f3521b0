package ssh

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// maxKeyFile bounds a file with a public key, in bytes.
const maxKeyFile = 8 << 10

func newKey(e *command.Env) *cobra.Command {
	return command.Group("key", "Permit public keys to log in to sandboxes", newKeyAdd(e), newKeyList(e), newKeyDelete(e))
}

type addOptions struct {
	*command.Env
	name  string
	roles []string
	life  time.Duration
}

func newKeyAdd(e *command.Env) *cobra.Command {
	o := &addOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "add FILE",
		Short: "Permit a public key to log in",
		Long: `Permits the owner of an SSH key to log in to sandboxes, with the permissions of a role: ssh SANDBOX@HOST -p PORT, where
SANDBOX is an id, a name in the project, or PROJECT/NAME. FILE holds the public key (.pub); - reads it from standard input.`,
		Example: "  r ssh key add ~/.ssh/id_ed25519.pub --name alice\n  r ssh key add - --name ci --role deployer@shop --expires 24h <ci.pub",
		Args:    command.Args(1, 1, "FILE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the user or program that has the key")
	f.StringSliceVar(&o.roles, "role", nil, "role, as of r auth generate; default: deployer in the project")
	f.DurationVar(&o.life, "expires", 0, "time until it is refused; default a year")
	return cmd
}

func (o *addOptions) run(ctx context.Context, file string) error {
	if o.name == "" {
		return exit.Usagef("--name is missing: the user or program that has the key")
	}
	key, err := o.read(file)
	if err != nil {
		return err
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	project := o.Project()
	if len(o.roles) == 0 {
		o.roles = []string{"deployer@" + project}
	}
	req := &server.AddSSHKeyRequest{Name: o.name, PublicKey: key, Roles: o.roles, Project: project}
	if o.life != 0 {
		req.TTL = &o.life
	}
	if err := req.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	resp, err := server.NewSSHClient(c).AddKey(ctx, req)
	return o.print(resp, err, "permitted")
}

// read reads a public key.
func (o *addOptions) read(file string) (string, error) {
	in := o.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", errs.New(errs.NotFound, "%w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxKeyFile+1))
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "%s: %w", file, err)
	}
	if len(b) > maxKeyFile {
		return "", exit.Usagef("%s is larger than any public key", file)
	}
	if strings.Contains(string(b), "PRIVATE KEY") {
		return "", exit.Usagef("%s is a private key, which nobody else should have: give the file whose name ends with .pub", file)
	}
	return string(b), nil
}

// print prints what happened to a key.
func (o *addOptions) print(resp *server.SSHKeyResponse, err error, what string) error {
	if err != nil {
		return err
	}
	k, err := entity.Decode[core.SSHKey](&resp.Key)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(k)
	}
	o.Printf("%s %s %s of %s (%s), until %s\n", o.Paint(console.Green, "✓"), what, k.Spec.Fingerprint, k.Spec.Identity, strings.Join(k.Spec.Roles, ", "),
		k.Spec.ExpiresAt.Format(time.DateOnly))
	return nil
}

func newKeyList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*core.SSHKey, error) {
		keys, _, err := command.All[core.SSHKey](ctx, e, entity.Query{})
		return keys, err
	}
	return command.List(e, "List the keys that may log in", []string{core.KindSSHKey}, load, func(_ context.Context, keys []*core.SSHKey) error {
		var rows [][]string
		for _, k := range keys {
			until := "until " + k.Spec.ExpiresAt.Format(time.DateOnly)
			if k.Spec.ExpiresAt.Before(time.Now()) {
				until = e.Paint(console.Yellow, "expired "+k.Spec.ExpiresAt.Format(time.DateOnly))
			}
			rows = append(rows, []string{string(k.ID), k.Spec.Identity, k.Spec.Fingerprint, strings.Join(k.Spec.Roles, ", "), until, schema.CellAge(k.CreatedAt, time.Now())})
		}
		e.Table([]string{"ID", "IDENTITY", "FINGERPRINT", "ROLES", "STATE", "AGE"}, rows)
		return nil
	})
}

func newKeyDelete(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "delete KEY",
		Short:             "Refuse a key again",
		Long:              "Refuses a key, named by its id or fingerprint, from now on, and closes the connections that it opened.",
		Args:              command.Args(1, 1, "KEY"),
		ValidArgsFunction: command.CompleteFirst(e, core.SSHKeyKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.Connect(cmd.Context())
			if err != nil {
				return err
			}
			resp, err := server.NewSSHClient(c).DeleteKey(cmd.Context(), &server.DeleteSSHKeyRequest{Key: args[0]})
			return (&addOptions{Env: e}).print(resp, err, "deleted")
		},
	}
}
