package auth

import (
	"cmp"
	"context"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/upgrade"
)

// maxKey bounds an API key, or a token, in bytes.
const maxKey = 16 << 10

// maxCA bounds the file of an authority, in bytes.
const maxCA = 1 << 20

// checkTimeout bounds the call that login makes.
const checkTimeout = 15 * time.Second

type loginOptions struct {
	*command.Env
	cluster    string
	ca         string
	serverName string
}

func newLogin(e *command.Env) *cobra.Command {
	o := &loginOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "login https://HOST:PORT",
		Short: "Keep an API key for a server, which later commands use",
		Long: `Reads an API key (r key create) from standard input, on a terminal without showing it, makes a call with it, and keeps
it with the server in the client configuration (~/.config/runtime/clientconfig.yaml, for its owner only). Later commands
go to this server, in the project of the key. The address is that of the server's HTTP API (api.address). Its certificate
is verified; plain http is for this machine only. In place of a key, a job of CI may have a token of OpenID Connect
(docs/ci.md): the server gives a key for it, for an hour.`,
		Example: "  r auth login https://runtime.example.com:7444 < key\n  r auth login https://runtime.example.com:7444 --ca ca.pem --as prod",
		Args:    command.Args(1, 1, "https://HOST:PORT"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.cluster, "as", "", "name of the cluster in the configuration; default: the host")
	f.StringVar(&o.ca, "ca", "", "file with the authority that signed the server's certificate; default: this machine's authorities")
	f.StringVar(&o.serverName, "server-name", "", "name expected in the server's certificate; default: the host")
	return cmd
}

func (o *loginOptions) run(ctx context.Context, address string) error {
	base, err := upgrade.ParseURL(address)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	cfg, err := load()
	if err != nil {
		return err
	}
	name := cmp.Or(o.cluster, base.Hostname())
	if old := cfg.Clusters[name]; old != nil && !byKey(cfg, name) {
		return errs.New(errs.AlreadyExists, "%s has a cluster %q already, for a certificate", cfg.Path(), name).
			WithHint("choose another name with --as, or remove it with `r cluster remove %s`", name)
	}
	cl, err := o.newCluster(base)
	if err != nil {
		return err
	}
	key, err := o.ReadSecret("API key", maxKey)
	if err != nil {
		return err
	}
	if key == "" || len(key) > maxKey || strings.ContainsAny(key, " \t\r\n\x00") {
		return exit.Usagef("standard input must be an API key alone; `r key create` on the server makes one")
	}
	id := &clientconfig.Identity{APIKey: key}
	trial := &clientconfig.Config{}
	trial.Put(name, cl, name, id, true)
	t, err := trial.Target(name)
	if err != nil {
		return err
	}
	var who *server.CallerResponse
	err = connected(ctx, t, func(ctx context.Context, c *rpc.Client) (err error) {
		if who, err = server.NewServerClient(c).Caller(ctx); err != nil || who.How != rpc.HowToken {
			return err
		}
		got, err := core.NewKeysClient(c).Exchange(ctx) // the token is valid for minutes only
		if err == nil {
			id.APIKey = got.Secret
		}
		return err
	})
	if err != nil {
		return errs.Wrap(err, "log in; nothing was changed")
	}
	cl.Project = cmp.Or(o.GivenProject(), who.Project)
	cfg.Put(name, cl, who.Name, id, true)
	if err := cfg.Save(); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(statusOf(name, cl.Server, cl.Project, who))
	}
	o.Printf("%s logged in to %s as %s (%s)\n", o.Paint(console.Green, "✓"), cl.Server, who.Name, strings.Join(who.Roles, ", "))
	o.Notef("commands use it from now on\n")
	return nil
}

func load() (*clientconfig.Config, error) {
	path, err := clientconfig.Path()
	if err != nil {
		return nil, err
	}
	return clientconfig.Load(path)
}

// byKey reports whether a cluster is one of login.
func byKey(cfg *clientconfig.Config, name string) bool {
	id := cfg.Identities[cfg.Clusters[name].Identity]
	return id != nil && id.APIKey != ""
}

func (o *loginOptions) newCluster(base *url.URL) (*clientconfig.Cluster, error) {
	cl := &clientconfig.Cluster{Server: base.String(), ServerName: o.serverName}
	if o.ca == "" {
		return cl, nil
	}
	if st, err := os.Stat(o.ca); err != nil || st.Size() > maxCA {
		return nil, exit.Usagef("--ca: %s is no file with a certificate in PEM", o.ca)
	}
	pem, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, exit.Usagef("--ca: %v", err)
	}
	cl.CA = string(pem)
	return cl, nil
}

// connected calls f with a connection to a server, for at most checkTimeout.
func connected(ctx context.Context, t *clientconfig.Target, f func(context.Context, *rpc.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c, err := t.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}

// caller calls a server as this client.
func caller(ctx context.Context, t *clientconfig.Target) (who *server.CallerResponse, err error) {
	err = connected(ctx, t, func(ctx context.Context, c *rpc.Client) (err error) {
		who, err = server.NewServerClient(c).Caller(ctx)
		return err
	})
	return who, err
}

// status is what --json prints.
type status struct {
	Source  string     `json:"source"` // cluster NAME, a flag, or a state directory
	Server  string     `json:"server"`
	Project string     `json:"project"`
	Name    string     `json:"name"`
	How     string     `json:"how"`
	Roles   []string   `json:"roles"`
	Expires *time.Time `json:"expires_at,omitempty"`
}

func statusOf(source, address, project string, who *server.CallerResponse) *status {
	return &status{Source: source, Server: address, Project: project, Name: who.Name, How: who.How, Roles: who.Roles, Expires: who.ExpiresAt}
}

func newStatus(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the server of commands, and as whom they call it",
		Args:  command.Args(0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return runStatus(cmd.Context(), e) },
	}
}

func runStatus(ctx context.Context, e *command.Env) error {
	t, err := e.Target()
	if err != nil {
		return err
	}
	who, err := caller(ctx, t)
	if err != nil {
		return err
	}
	st := statusOf(t.Source, t.Address, e.Project(), who)
	if e.JSON {
		return e.PrintJSON(st)
	}
	line := func(name, value string) {
		if value != "" {
			e.Printf("%s %s\n", e.Paint(console.Dim, (name + "          ")[:10]), value)
		}
	}
	line("server", st.Server+" ("+st.Source+")")
	line("project", st.Project)
	line("identity", st.Name)
	line("proof", st.How)
	line("roles", strings.Join(st.Roles, ", "))
	if st.Expires != nil {
		line("expires", st.Expires.Local().Format(time.DateTime))
	}
	return nil
}

func newLogout(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "logout [CLUSTER]",
		Short: "Forget the API key of a server; default: of the current cluster",
		Long: `Removes a server that r auth login added, and its API key, from the client configuration. The key stays valid:
r key delete ends it.`,
		Args: command.Args(0, 1),
		RunE: func(_ *cobra.Command, args []string) error { return logout(e, args) },
	}
}

func logout(e *command.Env, args []string) error {
	cfg, err := load()
	if err != nil {
		return err
	}
	name := cmp.Or(append(args, e.Options.Cluster, cfg.CurrentCluster)...)
	if name == "" {
		return errs.New(errs.FailedPrecondition, "there is no current cluster").WithHint("name one: `r cluster list` has them")
	}
	if _, err := cfg.Cluster(name); err != nil {
		return err
	}
	if !byKey(cfg, name) {
		return errs.New(errs.FailedPrecondition, "cluster %s has no API key", name).WithHint("`r cluster remove %s` removes it with its certificate", name)
	}
	if _, err := cfg.Remove(name); err != nil {
		return err
	}
	if err := cfg.Save(); err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(map[string]string{"event": "removed", "cluster": name})
	}
	e.Printf("removed %s and its API key\n", name)
	return nil
}
