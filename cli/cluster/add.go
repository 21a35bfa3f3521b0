package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
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

// checkTimeout bounds the connection that add makes to a server.
const checkTimeout = 15 * time.Second

// maxPEM bounds a file of a certificate or key, in bytes.
const maxPEM = 1 << 20

type addOptions struct {
	*command.Env
	from        string
	certificate string
	key         string
	ca          string
	identity    string
	serverName  string
	use         bool
	noCheck     bool
	replace     bool
}

func newAdd(e *command.Env) *cobra.Command {
	o := &addOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "add NAME [HOST:PORT]",
		Short: "Add a remote server to the client configuration",
		Long: `Adds a remote server, with the certificate to use for it, to the client configuration. --from takes a file that
` + "`r auth generate --file FILE`" + ` wrote on the server; otherwise give HOST:PORT and the files of certificate, key and
authority. Their content is copied. The command connects to the server first, and adds nothing if that fails.

--project becomes the default project of the cluster.`,
		Example: `  r cluster add prod --from alice.yaml --use
  r cluster add prod runtime.example.com:7443 --certificate alice.pem --key alice.key --ca ca.pem`,
		Args: command.Args(1, 2, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "file written by r auth generate --file, - for standard input")
	f.StringVar(&o.certificate, "certificate", "", "file with the client certificate, in PEM")
	f.StringVar(&o.key, "key", "", "file with the private key of the certificate, in PEM")
	f.StringVar(&o.ca, "ca", "", "file with the authority that signed the server's certificate; default: this machine's authorities")
	f.StringVar(&o.identity, "identity", "", "use this identity of the configuration instead of --certificate and --key")
	f.StringVar(&o.serverName, "server-name", "", "name expected in the server's certificate; default: the host")
	f.BoolVar(&o.use, "use", false, "make it the current cluster")
	f.BoolVar(&o.noCheck, "no-check", false, "add it without connecting")
	f.BoolVar(&o.replace, "replace", false, "replace the cluster of this name")
	cmd.MarkFlagsRequiredTogether("certificate", "key")
	cmd.MarkFlagsMutuallyExclusive("from", "certificate")
	cmd.MarkFlagsMutuallyExclusive("from", "identity")
	cmd.MarkFlagsMutuallyExclusive("from", "ca")
	cmd.MarkFlagsMutuallyExclusive("identity", "certificate")
	return cmd
}

func (o *addOptions) run(ctx context.Context, args []string) error {
	name, address := args[0], ""
	if len(args) > 1 {
		address = args[1]
	}
	if err := checkName(name); err != nil {
		return err
	}
	cfg, err := load()
	if err != nil {
		return err
	}
	if cfg.Clusters[name] != nil && !o.replace {
		return errs.New(errs.AlreadyExists, "%s has a cluster %q already", cfg.Path(), name).
			WithHint("choose another name, or give --replace")
	}
	cl, id, err := o.read(address)
	if err != nil {
		return err
	}
	cl.ServerName = cmp.Or(o.serverName, cl.ServerName)
	cl.Project = cmp.Or(o.GivenProject(), cl.Project)
	if o.identity != "" {
		if cfg.Identities[o.identity] == nil {
			return errs.New(errs.NotFound, "%s has no identity %q", cfg.Path(), o.identity).
				WithHint("give --certificate and --key, or --from")
		}
		cl.Identity = o.identity
	}
	cfg.Put(name, cl, identityName(id, name), id, o.use)
	target, err := cfg.Target(name)
	if err != nil {
		return err
	}
	if target.TLS != nil && target.Key == "" && len(target.TLS.Certificates) == 0 {
		return exit.Usagef("a server on the network needs a client certificate: give --from, --certificate and --key, or --identity; " +
			"`r auth generate --name YOU --file FILE` on the server makes one")
	}
	var st *server.StatusResponse
	if !o.noCheck {
		if st, err = check(ctx, target); err != nil {
			return o.checkFailed(name, target, err)
		}
	}
	if err := cfg.Save(); err != nil {
		return err
	}
	return o.report(cfg, name, st)
}

// read returns the cluster that the flags describe, and its identity.
func (o *addOptions) read(address string) (*clientconfig.Cluster, *clientconfig.Identity, error) {
	if o.from != "" {
		from, err := o.readFrom()
		if err != nil {
			return nil, nil, err
		}
		names := from.Names()
		name := from.CurrentCluster
		if name == "" && len(names) == 1 {
			name = names[0]
		}
		if name == "" {
			return nil, nil, errs.New(errs.InvalidArgument, "%s names %d clusters, and none as current_cluster", o.from, len(names)).
				WithHint("set current_cluster in it, or make a file with `r auth generate --file`")
		}
		cl, id, err := from.Inline(name)
		if err != nil {
			return nil, nil, err
		}
		cl.Server = cmp.Or(address, cl.Server)
		return cl, id, nil
	}
	if address == "" {
		return nil, nil, exit.Usagef("HOST:PORT of the server is missing; or give --from FILE")
	}
	cl := &clientconfig.Cluster{Server: address}
	var id *clientconfig.Identity
	var err error
	if o.ca != "" {
		if cl.CA, err = readPEM(o.ca); err != nil {
			return nil, nil, err
		}
	}
	if o.certificate != "" {
		id = &clientconfig.Identity{}
		if id.Certificate, err = readPEM(o.certificate); err != nil {
			return nil, nil, err
		}
		if id.Key, err = readPEM(o.key); err != nil {
			return nil, nil, err
		}
	}
	return cl, id, nil
}

// identityName returns the name in the certificate of an identity, or the given
// name if the certificate has none.
func identityName(id *clientconfig.Identity, name string) string {
	if id == nil {
		return ""
	}
	// Config.Target returns the error for a key that does not fit the
	// certificate.
	if pair, err := tls.X509KeyPair([]byte(id.Certificate), []byte(id.Key)); err == nil {
		return cmp.Or(pair.Leaf.Subject.CommonName, name)
	}
	return name
}

func (o *addOptions) readFrom() (*clientconfig.Config, error) {
	if o.from == "-" {
		return clientconfig.Read("standard input", o.In)
	}
	if _, err := os.Stat(o.from); err != nil {
		return nil, errs.New(errs.NotFound, "--from: %w", err).WithHint("`r auth generate --name YOU --file FILE` on the server makes one")
	}
	return clientconfig.Load(o.from)
}

func readPEM(file string) (string, error) {
	st, err := os.Stat(file)
	if err != nil {
		return "", errs.New(errs.NotFound, "%w", err)
	}
	if st.Size() > maxPEM {
		return "", errs.New(errs.InvalidArgument, "%s is larger than %d bytes: a certificate or key in PEM is expected", file, maxPEM)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", errs.New(errs.Unavailable, "%w", err)
	}
	if !strings.Contains(string(b), "-----BEGIN ") {
		return "", errs.New(errs.InvalidArgument, "%s contains no PEM block (-----BEGIN ...)", file).
			WithHint("convert a DER file with `openssl x509 -inform der` or `openssl pkey -inform der`")
	}
	return string(b), nil
}

// check connects to the server and calls it as this client.
func check(ctx context.Context, t *clientconfig.Target) (*server.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c, err := t.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return server.NewServerClient(c).Status(ctx)
}

func (o *addOptions) checkFailed(name string, t *clientconfig.Target, err error) error {
	hint := "nothing was added; --no-check adds it without connecting"
	if h := errs.HintOf(err); h != "" {
		hint = h + "\n" + hint
	}
	return errs.New(errs.ClassOf(err), "check cluster %s at %s: %w", name, t.Address, err).WithHint("%s", hint)
}

func (o *addOptions) report(cfg *clientconfig.Config, name string, st *server.StatusResponse) error {
	i := describe(cfg, name)
	if o.JSON {
		doc := map[string]any{"cluster": i, "file": cfg.Path(), "checked": st != nil}
		if st != nil {
			doc["server_version"], doc["instance"] = st.Version, st.Instance
		}
		return o.PrintJSON(doc)
	}
	what := "not checked"
	if st != nil {
		what = "runtime " + st.Version + ", instance " + st.Instance
	}
	o.Printf("%s added %s at %s (%s)\n", o.Paint(console.Green, "✓"), name, i.Server, what)
	if i.Expires != nil {
		o.Printf("  the certificate is valid until %s\n", i.Expires.Local().Format(time.DateOnly))
	}
	if i.Current {
		o.Notef("commands go to it from now on\n")
	} else {
		o.Notef("use it with --cluster %s, or make it the current one with `r cluster use %s`\n", name, name)
	}
	return nil
}
