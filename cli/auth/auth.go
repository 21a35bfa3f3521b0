// Package auth has `r auth`: client certificates and API keys, and the client
// configuration for them:
//
//	login     keeps an API key for a server; status, logout
//	generate  makes one
//	list      shows those that were issued or revoked
//	revoke    revokes them
package auth

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("auth", "Log in with an API key; make, list and revoke client certificates",
		newLogin(e), newStatus(e), newLogout(e), newGenerate(e), newList(e), newRevoke(e))
}

type generateOptions struct {
	*command.Env
	name    string
	roles   []string
	ttl     time.Duration
	address string
	cluster string
	file    string
	use     bool
}

func newGenerate(e *command.Env) *cobra.Command {
	o := &generateOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make a client certificate and a client configuration for it",
		Long: `Makes a client certificate and writes it, with the address of the server, to the client configuration
(~/.config/runtime/clientconfig.yaml), or with --file to a file for another machine (- prints it), where
` + "`r cluster add NAME --from FILE`" + ` reads it. The server must listen on the network: r server start --rpc-address HOST:PORT.`,
		Example: "  r auth generate --name alice\n  r auth generate --name carol --role deployer@shop --role viewer\n  r auth generate --name ci --role deployer --ttl 720h --file ci.yaml",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the user or program that will use it")
	f.StringSliceVar(&o.roles, "role", []string{"admin"}, "role: admin, deployer, agent or viewer, in all projects, or in one as ROLE@PROJECT; repeat for several")
	f.DurationVar(&o.ttl, "ttl", 0, "validity; default a year")
	f.StringVar(&o.address, "address", "", "host:port at which clients reach the server; default: the address that the server reports")
	f.StringVar(&o.cluster, "as", "", "name of the cluster in the configuration; default: the host")
	f.StringVarP(&o.file, "file", "f", "", "write to this new file instead, - for standard output")
	f.BoolVar(&o.use, "use", false, "make it the current cluster")
	_ = cmd.RegisterFlagCompletionFunc("role", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"admin", "deployer", "agent", "viewer"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
	return cmd
}

func (o *generateOptions) run(ctx context.Context) error {
	if o.name == "" {
		return exit.Usagef("--name is missing: the user or program that will use the certificate")
	}
	req := &server.IssueIdentityRequest{Name: o.name, Roles: o.roles}
	if o.ttl != 0 {
		req.TTL = &o.ttl
	}
	if err := req.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := server.NewServerClient(c).IssueIdentity(ctx, req)
	if err != nil {
		return err
	}
	address := o.address
	if address == "" && len(resp.Addresses) > 0 {
		address = resp.Addresses[0]
	}
	if address == "" {
		return errs.New(errs.FailedPrecondition, "the server does not listen on the network, where the certificate would be used").
			WithHint("start it with --rpc-address HOST:PORT, or give the address for clients with --address")
	}
	name := cmp.Or(o.cluster, hostOf(address))
	cfg, err := o.config()
	if err != nil {
		return err
	}
	cl := &clientconfig.Cluster{Server: address, CA: resp.CA}
	cfg.Put(name, cl, o.name, &clientconfig.Identity{Certificate: resp.Certificate, Key: resp.Key}, o.use || o.file != "")
	if o.file == "-" {
		return cfg.Write(o.Out)
	}
	if err := cfg.Save(); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{
			"file": cfg.Path(), "cluster": name, "identity": o.name, "roles": o.roles, "server": address, "serial": resp.Serial, "expires_at": resp.ExpiresAt,
		})
	}
	o.Printf("%s wrote %s\n", o.Paint(console.Green, "✓"), cfg.Path())
	o.Printf("  cluster   %s at %s\n  identity  %s (%s), until %s\n", name, address, o.name, strings.Join(o.roles, ", "), resp.ExpiresAt.Format(time.DateOnly))
	if cfg.CurrentCluster == name {
		o.Notef("commands use it from now on\n")
	} else {
		o.Notef("use it with --cluster %s\n", name)
	}
	return nil
}

// config returns the configuration that the certificate is added to.
func (o *generateOptions) config() (*clientconfig.Config, error) {
	path := o.file
	if path == "-" {
		return &clientconfig.Config{}, nil
	}
	if path == "" {
		var err error
		if path, err = clientconfig.Path(); err != nil {
			return nil, err
		}
	} else if _, err := os.Stat(path); err == nil {
		return nil, errs.New(errs.AlreadyExists, "%s exists already", path).WithHint("choose another file")
	}
	return clientconfig.Load(path)
}

func hostOf(address string) string {
	host, _, ok := strings.Cut(strings.TrimPrefix(address, "["), "]")
	if !ok {
		host, _, _ = strings.Cut(address, ":")
	}
	return host
}
