package serverctl

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/server"
)

type imagesOptions struct {
	*command.Env
	config process.Config
}

// NewExportImages makes `r server export-images`.
func NewExportImages(e *command.Env) *cobra.Command {
	o := &imagesOptions{Env: e}
	cmd := &cobra.Command{
		Use: "export-images FILE [IMAGE...]",
		Long: `Writes the base images of this machine to a file, so that another machine makes none of them and needs no package
registry for them (r server import-images). The server may run. The file is an OCI image layout in a tar archive, which
other tools read too. Machines of another processor have no use for it.

IMAGE is a name as in a Dockerfile; without names all images are written. It makes none.`,
		Example: "  r server export-images images.tar\n  r server export-images node.tar runtime/node:22 runtime/sandbox:base",
		Args:    command.Args(1, -1, "FILE", "IMAGE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.export(cmd.Context(), args[0], args[1:]) },
	}
	o.config.AddFlags(cmd)
	return cmd
}

// NewImportImages makes `r server import-images`.
func NewImportImages(e *command.Env) *cobra.Command {
	o := &imagesOptions{Env: e}
	cmd := &cobra.Command{
		Use: "import-images FILE",
		Long: `Takes the base images of a file that r server export-images or make release-data wrote; - reads standard input. The
server may run, and uses them from its next build or start on. Every image is verified before the first one appears.
Images that exist are kept. An image that this machine would make in another way is left out, and the command says why:
it is of another version of the system, another distribution or another processor.

The package manager in such an image asks the mirrors of the machine that made it.`,
		Example: "  r server import-images images.tar\n  curl -fsSL https://example.com/images.tar | r server import-images -",
		Args:    command.Args(1, 1, "FILE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.imports(cmd.Context(), args[0]) },
	}
	o.config.AddFlags(cmd)
	return cmd
}

func (o *imagesOptions) export(ctx context.Context, path string, names []string) error {
	cfg, err := process.LastConfig(&o.config)
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(path, 0o644, atomicfile.NoReplace)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "create the archive: %w", err)
	}
	defer f.Abort()
	progress := o.Progress("export images", false)
	list, err := server.ExportImages(ctx, cfg, f, names, progress.Phase)
	progress.End()
	if err != nil {
		return err
	}
	if err := f.Commit(); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return errs.New(errs.FailedPrecondition, "%s exists", path).WithHint("choose another name; an export replaces nothing")
		}
		return errs.New(errs.Unavailable, "write the archive: %w", err)
	}
	return o.print(list)
}

func (o *imagesOptions) imports(ctx context.Context, path string) error {
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "only root can import images").WithHint("sudo r server import-images %s", path)
	}
	cfg, err := process.LastConfig(&o.config)
	if err != nil {
		return err
	}
	from := io.Reader(os.Stdin)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return errs.New(errs.InvalidArgument, "the archive cannot be read: %w", err)
		}
		defer f.Close()
		from = f
	}
	progress := o.Progress("import images", false)
	list, err := server.ImportImages(ctx, cfg, from, progress.Phase)
	progress.End()
	if err != nil {
		return err
	}
	return o.print(list)
}

func (o *imagesOptions) print(list []baseimage.Archived) error {
	if o.JSON {
		return o.PrintJSON(list)
	}
	var rows [][]string
	for _, i := range list {
		note := ""
		switch {
		case i.Kept:
			note = "was here"
		case i.Other != "":
			note = o.Paint(console.Yellow, "left out: "+i.Other)
		}
		rows = append(rows, []string{i.Image, schema.CellBytes(i.Bytes), note})
	}
	o.Table([]string{"IMAGE", "SIZE", "NOTE"}, rows)
	return nil
}
