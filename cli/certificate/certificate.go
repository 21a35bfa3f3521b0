// Package certificate has `r certificate`: certificates with which the ingress
// serves hosts by HTTPS.
package certificate

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("certificate", "Serve hosts by HTTPS", newSet(e), newList(e), newShow(e), newRenew(e), newDelete(e))
}

type setOptions struct {
	*command.Env
	cert, key string
}

func newSet(e *command.Env) *cobra.Command {
	o := &setOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "set NAME --cert FILE --key FILE",
		Short: "Set a certificate",
		Long: `Sets a certificate of the project. The ingress serves the hosts that it is for by HTTPS (ingress.https_address), and redirects
HTTP to it. Set it again under its name before it expires; open connections stay. The server encrypts the key, and never
shows it.`,
		Example: "  r certificate set shop --cert fullchain.pem --key privkey.pem",
		Args:    command.Args(1, 1, "NAME"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&o.cert, "cert", "", "file with the certificate, and after it those of its authorities, in PEM")
	cmd.Flags().StringVar(&o.key, "key", "", "file with its private key, in PEM")
	return cmd
}

func (o *setOptions) run(ctx context.Context, name string) error {
	if o.cert == "" || o.key == "" {
		return exit.Usagef("name the files: --cert fullchain.pem --key privkey.pem")
	}
	chain, err := read(o.cert, certificate.MaxChain)
	if err != nil {
		return err
	}
	key, err := read(o.key, certificate.MaxKey)
	if err != nil {
		return err
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := certificate.NewCertificatesClient(c).Set(ctx, &certificate.SetCertificateRequest{Project: o.Project(), Certificate: name, Chain: chain, Key: key})
	if err != nil {
		return err
	}
	made, err := entity.Decode[certificate.Certificate](&resp.Certificate)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(made)
	}
	o.Printf("%s set the certificate %s for %s, %s\n", o.Paint(console.Green, "✓"), made.Name, strings.Join(made.Spec.Names, ", "), state(o.Env, made))
	return nil
}

// read returns a file of at most limit bytes.
func read(path string, limit int64) (string, error) {
	st, err := os.Stat(path)
	if err == nil && st.Size() > limit {
		return "", errs.New(errs.InvalidArgument, "%s has %d bytes, more than %d", path, st.Size(), limit)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "%w", err)
	}
	return string(b), nil
}

// soon is the rest of a certificate's life in which its state is marked.
const soon = 14 * 24 * time.Hour

// state says until when a certificate is valid.
func state(e *command.Env, c *certificate.Certificate) string {
	now, end := time.Now(), c.Spec.NotAfter.Format(time.DateOnly)
	switch {
	case now.Before(c.Spec.NotBefore):
		return e.Paint(console.Yellow, "valid from "+c.Spec.NotBefore.Format(time.DateTime))
	case c.Spec.NotAfter.Before(now):
		return e.Paint(console.Red, "expired "+end)
	case c.Spec.NotAfter.Before(now.Add(soon)):
		return e.Paint(console.Yellow, "valid until "+end)
	default:
		return "valid until " + end
	}
}

func newDelete(e *command.Env) *cobra.Command {
	return command.Delete(e, certificate.CertificateKind, "certificate", "Delete a certificate",
		"Deletes a certificate. From then on its hosts are not served by HTTPS, unless another one is for them. One that the\nserver orders for a route is ordered again at once.",
		func(ctx context.Context, c *rpc.Client, name string) error {
			return certificate.NewCertificatesClient(c).Delete(ctx, &certificate.CertificateRequest{Project: e.Project(), Certificate: name})
		})
}
