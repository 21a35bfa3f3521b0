package serverctl

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/server"
)

type refreshImagesOptions struct {
	*command.Env
	config process.Config
	dryRun bool
}

// NewRefreshImages makes `r server refresh-images`.
func NewRefreshImages(e *command.Env) *cobra.Command {
	o := &refreshImagesOptions{Env: e}
	cmd := &cobra.Command{
		Use: "refresh-images",
		Long: `Finds the base images of this machine that have packages of which the distribution has newer versions, such as those
with security fixes, and makes the images of that release again. The server may run. Builds that begin afterwards use
the new images; running apps keep their images until their next build. The server gives the templates that come with
the system the new images. If the command fails or is killed, builds use the old images.

It shows each package with its versions. Images that were replaced stay for two days, for builds that read them. With
build.refresh_every in its configuration, the server does it by itself.`,
		Example: "  r server refresh-images --dry-run\n  r server refresh-images",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only show the packages with newer versions")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *refreshImagesOptions) run(ctx context.Context) error {
	cfg, err := process.LastConfig(&o.config)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "only root can make images again").WithHint("sudo r server refresh-images")
	}
	outdated, err := server.RefreshImages(ctx, cfg, o.dryRun, func(line string) { o.Notef("%s\n", line) })
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(append([]baseimage.Outdated{}, outdated...))
	}
	var rows [][]string
	for _, i := range outdated {
		for _, u := range i.Updates {
			rows = append(rows, []string{i.Image + " " + i.Version, i.Release, u.Package, u.From, u.To})
		}
	}
	if len(rows) == 0 {
		o.Notef("every image has the newest packages\n")
		return nil
	}
	o.Table([]string{"IMAGE", "RELEASE", "PACKAGE", "FROM", "TO"}, rows)
	return nil
}
