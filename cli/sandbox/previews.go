package sandbox

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
)

type previewOptions struct {
	*command.Env
	public bool
	ttl    time.Duration
}

func newPreview(e *command.Env) *cobra.Command {
	o := &previewOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "preview ID PORT",
		Short: "Make a port of a sandbox reachable by a URL",
		Long: `Makes a port reachable through the ingress, as <port>-<sandbox>.<domain>, for those who send the token that it prints
(Authorization: Bearer TOKEN, or X-Access-Token) or open a URL of r preview url; with --public for everybody. PORT all opens
every port but those on which a process listens on 127.0.0.1 only. A request resumes a paused sandbox. A preview that exists is
changed to what the flags say.`,
		Example:           "  r sandbox preview sb-4k2j 3000\n  r sandbox preview sb-4k2j 8080 --public --ttl 24h",
		Args:              command.Args(2, 2, "ID", "PORT"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	cmd.Flags().BoolVar(&o.public, "public", false, "without a token")
	cmd.Flags().DurationVar(&o.ttl, "ttl", 0, "it ends this long after now; default: with the sandbox")
	return cmd
}

func previews(ctx context.Context, e *command.Env) (sandbox.PreviewsClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return sandbox.NewPreviewsClient(c), nil
}

func (o *previewOptions) run(ctx context.Context, name, arg string) error {
	port, err := strconv.ParseInt(arg, 10, 32)
	if (err != nil || port < 1 || port > sandbox.MaxPort) && arg != "all" {
		return exit.Usagef("%q is no port: 1 to %d, or all", arg, sandbox.MaxPort)
	}
	req := &sandbox.CreatePreviewRequest{Port: &port, Public: &o.public}
	if o.ttl != 0 {
		req.TTL = &o.ttl
	}
	c, err := previews(ctx, o.Env)
	if err != nil {
		return err
	}
	s, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	req.Sandbox = s.GetID()
	if err := req.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	resp, err := c.Create(ctx, req)
	if err != nil {
		return err
	}
	p, err := entity.Decode[sandbox.Preview](&resp.Preview)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"preview": p, "url": resp.URL, "token": resp.Token})
	}
	if resp.URL == "" {
		o.Notef("there is no ingress: set ingress.http_address\n")
	}
	if resp.Token == "" {
		o.Printf("%s\n", resp.URL)
		return nil
	}
	o.Printf("%s %s\n%s %s\n", o.Paint(console.Dim, "url  "), resp.URL, o.Paint(console.Dim, "token"), resp.Token)
	o.Notef("a link that opens it: r preview url %s\n", p.Name)
	return nil
}
