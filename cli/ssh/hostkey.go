package ssh

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	gossh "golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

func newHostKey(e *command.Env) *cobra.Command {
	return command.Group("host-key", "Show and rotate the host keys of the SSH gateway", newHostKeyList(e), newHostKeyRotate(e))
}

func newHostKeyList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*core.SSHHost, error) {
		hosts, _, err := command.All[core.SSHHost](ctx, e, entity.Query{})
		return hosts, err
	}
	return command.List(e, "List the current and the next host key", []string{core.KindSSHHost}, load, func(_ context.Context, hosts []*core.SSHHost) error {
		var rows [][]string
		for _, h := range hosts {
			current, next, err := fingerprints(h)
			if err != nil {
				return err
			}
			since := h.CreatedAt
			if h.Spec.RotatedAt != nil {
				since = *h.Spec.RotatedAt
			}
			rows = append(rows, []string{"current", current, "since " + since.Format(time.DateOnly)}, []string{"next", next, ""})
		}
		e.Table([]string{"KEY", "FINGERPRINT", "STATE"}, rows)
		return nil
	})
}

// fingerprints returns the fingerprints of the current key and of the next one.
func fingerprints(h *core.SSHHost) (current, next string, err error) {
	var prints [2]string
	for i, line := range []string{h.Spec.CurrentKey, h.Spec.NextKey} {
		k, _, _, _, err := gossh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return "", "", errs.New(errs.Internal, "host key of the server: %w", err)
		}
		prints[i] = gossh.FingerprintSHA256(k)
	}
	return prints[0], prints[1], nil
}

func newHostKeyRotate(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Make the next host key the current one",
		Long: `Makes the next host key of the SSH gateway the current one, on all servers, and makes a new next one. Connections that are
open go on. Clients that were told of the next key before, by OpenSSH's UpdateHostKeys or r ssh-config, notice nothing;
others are warned of a changed key. So wait between two rotations until all clients have connected.`,
		Args: command.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := e.Connect(cmd.Context())
			if err != nil {
				return err
			}
			resp, err := server.NewSSHClient(c).RotateHostKey(cmd.Context())
			if err != nil {
				return err
			}
			h, err := entity.Decode[core.SSHHost](&resp.Host)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(h)
			}
			current, next, err := fingerprints(h)
			if err != nil {
				return err
			}
			e.Printf("%s the host key is %s, the next one %s\n", e.Paint(console.Green, "✓"), current, next)
			return nil
		},
	}
}
