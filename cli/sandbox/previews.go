package sandbox

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
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

// NewPreviews makes the commands of previews.
func NewPreviews(e *command.Env) *cobra.Command {
	o := &previewOptions{Env: e}
	return command.Group("preview", "Ports of sandboxes that are reachable by URLs",
		command.List(e, "List the previews", []string{sandbox.KindPreview}, o.load, o.print), newPreviewURL(e), newDeletePreview(e))
}

func (o *previewOptions) load(ctx context.Context) ([]*sandbox.Preview, error) {
	list, _, err := command.All[sandbox.Preview](ctx, o.Env, entity.Query{})
	slices.SortFunc(list, func(a, b *sandbox.Preview) int {
		return cmp.Or(cmp.Compare(a.Spec.Sandbox, b.Spec.Sandbox), cmp.Compare(a.Spec.Port, b.Spec.Port))
	})
	return list, err
}

func (o *previewOptions) print(_ context.Context, list []*sandbox.Preview) error {
	if len(list) == 0 && o.Terminal {
		o.Notef("there are no previews: `r sandbox preview ID PORT` makes one\n")
		return nil
	}
	var rows [][]string
	for _, p := range list {
		access, port, end := "token", strconv.FormatInt(p.Spec.Port, 10), "with the sandbox"
		if p.Spec.Public {
			access = "public"
		}
		if p.Spec.Port == 0 {
			port = "all"
		}
		if at := p.Spec.ExpiresAt; at != nil && at.Before(time.Now()) {
			end = o.Paint(console.Yellow, "ended")
		} else if at != nil {
			end = at.Format(time.DateTime)
		}
		rows = append(rows, []string{p.Name, string(p.Spec.Sandbox), port, access, end, schema.CellAge(p.CreatedAt, time.Now())})
	}
	o.Table([]string{"NAME", "SANDBOX", "PORT", "ACCESS", "ENDS", "AGE"}, rows)
	return nil
}

func newPreviewURL(e *command.Env) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "url NAME",
		Short: "Print a URL that opens a preview for a while",
		Long: `Prints a URL with a token that is valid for an hour, or --ttl. A browser that opens it gets a cookie, and goes on without
the token in its address. Whoever has the URL can use the preview until then, or until the preview is deleted.`,
		Example:           "  r preview url 3000-sb4k2j --ttl 10m",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.PreviewKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := previews(cmd.Context(), e)
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

func newDeletePreview(e *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "delete NAME...",
		Aliases:           []string{"rm"},
		Short:             "Delete previews",
		Long:              "Deletes previews. Connections through them end, and their tokens and URLs open nothing any more.",
		Args:              command.Args(1, -1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.PreviewKind),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := previews(cmd.Context(), e)
		if err != nil {
			return err
		}
		for _, name := range args {
			p, err := command.Find[sandbox.Preview](cmd.Context(), e, name)
			if err != nil {
				return err
			}
			if err := c.Delete(cmd.Context(), &sandbox.PreviewRequest{Preview: p.GetID()}); err != nil {
				return err
			}
			if e.JSON {
				if err := e.PrintJSONLine(map[string]string{"event": "deleted", "id": string(p.ID)}); err != nil {
					return err
				}
			}
			e.Printf("deleted %s\n", p.Name)
		}
		return nil
	}
	return cmd
}
