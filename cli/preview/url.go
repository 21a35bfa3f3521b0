package preview

import (
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

func newURL(e *command.Env) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "url NAME",
		Short: "Print a URL that opens a preview for a while",
		Long: `Prints a URL with a token that is valid for an hour, or --ttl. A browser that opens it gets a cookie, and goes on without
the token in its address. Everyone with the URL can use the preview until then, or until a user deletes the preview.`,
		Example:           "  r preview url 3000-sb4k2j --ttl 10m",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.PreviewKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := ports(cmd.Context(), e)
			if err != nil {
				return err
			}
			p, err := command.Find[sandbox.Preview](cmd.Context(), e, args[0])
			if err != nil {
				return err
			}
			req := &sandbox.SignPreviewRequest{Preview: p.GetID()}
			if ttl != 0 {
				req.TTL = &ttl
			}
			if err := req.Validate(); err != nil {
				return exit.With(exit.Usage, err)
			}
			resp, err := c.Sign(cmd.Context(), req)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(map[string]any{"url": resp.URL, "expires_at": resp.ExpiresAt})
			}
			e.Printf("%s\n", resp.URL)
			return nil
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "it is valid this long; default: an hour")
	return cmd
}
