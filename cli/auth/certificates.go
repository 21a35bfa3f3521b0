package auth

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*core.ClientCertificate, error) {
		certs, _, err := command.All[core.ClientCertificate](ctx, e, entity.Query{})
		return certs, err
	}
	return command.List(e, "List the client certificates that were issued or revoked", []string{core.KindClientCertificate}, load,
		func(_ context.Context, certs []*core.ClientCertificate) error {
			table(e, certs)
			return nil
		})
}

func table(e *command.Env, certs []*core.ClientCertificate) {
	var rows [][]string
	for _, c := range certs {
		rows = append(rows, []string{
			c.Spec.Identity, cmp.Or(c.Spec.Serial, "(not recorded)"), strings.Join(c.Spec.Roles, ", "), state(e, c), schema.CellAge(c.CreatedAt, time.Now()),
		})
	}
	e.Table([]string{"IDENTITY", "SERIAL", "ROLES", "STATE", "AGE"}, rows)
}

// state says whether a certificate is valid, and until when.
func state(e *command.Env, c *core.ClientCertificate) string {
	switch end := c.Spec.ExpiresAt; {
	case c.Spec.RevokedAt != nil:
		return e.Paint(console.Red, "revoked "+c.Spec.RevokedAt.Format(time.DateOnly))
	case end == nil:
		return ""
	case end.Before(time.Now()):
		return e.Paint(console.Yellow, "expired "+end.Format(time.DateOnly))
	default:
		return "until " + end.Format(time.DateOnly)
	}
}

func newRevoke(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAME|SERIAL",
		Short: "Revoke the certificates of an identity, or one by its serial number",
		Long: `Revokes every client certificate of an identity, or the one with a serial number. The server refuses it at once, also
on connections that are open: calls under way are canceled. A certificate stays revoked; ` + "`r auth generate`" + ` makes a new one.`,
		Example: "  r auth revoke alice\n  r auth revoke 5f2b9c0a7d1e4c3b8a6f0e9d2c1b4a7f",
		Args:    command.Args(1, 1, "NAME or SERIAL"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runRevoke(cmd.Context(), e, args[0]) },
	}
}

func runRevoke(ctx context.Context, e *command.Env, which string) error {
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := server.NewServerClient(c).RevokeIdentity(ctx, &server.RevokeIdentityRequest{Certificate: which})
	if err != nil {
		return err
	}
	var certs []*core.ClientCertificate
	recorded := 0
	for i := range resp.Certificates {
		cert, err := entity.Decode[core.ClientCertificate](&resp.Certificates[i])
		if err != nil {
			return err
		}
		certs = append(certs, cert)
		if cert.Spec.Serial != "" {
			recorded++
		}
	}
	if e.JSON {
		return e.PrintJSON(certs)
	}
	if recorded == 0 {
		e.Notef("no certificate of %s is recorded; `r auth list` lists those that are\n", which)
	}
	for _, cert := range certs {
		if cert.Spec.Serial != "" {
			e.Printf("%s revoked %s %s\n", e.Paint(console.Green, "✓"), cmp.Or(cert.Spec.Identity, "certificate"), cert.Spec.Serial)
			continue
		}
		e.Printf("%s revoked every certificate of %s that is not recorded\n", e.Paint(console.Green, "✓"), cert.Spec.Identity)
	}
	return nil
}
