package preview

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/errs"
)

type deleteOptions struct {
	*command.Env
	app string
}

func newDelete(e *command.Env) *cobra.Command {
	o := &deleteOptions{Env: e}
	cmd := &cobra.Command{
		Use:     "delete NAME...",
		Aliases: []string{"rm"},
		Short:   "Delete previews",
		Long: `Deletes previews. A preview of an app loses its host at once, and its sandboxes when they have finished their requests. Of
the preview of a port connections end, and its tokens and URLs open nothing any more.

A name that no preview of a port has is that of a preview of an app: that of --app, or of this folder.`,
		Example:           "  r preview delete pr-12\n  r preview delete pr-12 --app shop\n  r preview delete 3000-sb4k2j0123456789ab",
		Args:              command.Args(1, -1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.PreviewKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := o.delete(cmd.Context(), name); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&o.app, "app", "a", "", "app of which they are previews; default: the current folder's")
	return cmd
}

func (o *deleteOptions) delete(ctx context.Context, name string) error {
	if o.app == "" {
		p, err := command.Find[sandbox.Preview](ctx, o.Env, name)
		if err == nil {
			c, err := ports(ctx, o.Env)
			if err != nil {
				return err
			}
			if err := c.Delete(ctx, &sandbox.PreviewRequest{Preview: p.GetID()}); err != nil {
				return err
			}
			return o.report(p.Name, map[string]string{"event": "deleted", "id": string(p.ID)})
		}
		if !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	of, err := command.AppName(o.app, ".")
	if err != nil {
		return err
	}
	req := &app.AppPreviewRequest{Project: o.Project(), App: of, Preview: name}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	if err := app.NewAppsClient(c).DeletePreview(ctx, req); err != nil {
		return err
	}
	return o.report(name+" of "+of, map[string]string{"event": "deleted", "app": of, "preview": name})
}

func (o *deleteOptions) report(what string, line map[string]string) error {
	if o.JSON {
		return o.PrintJSONLine(line)
	}
	o.Printf("deleted %s\n", what)
	return nil
}
