package sandbox

import (
	"context"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/pkg/schema"
)

func newFiles(e *command.Env) *cobra.Command {
	o := &copyOptions{Env: e}
	cmd := &cobra.Command{
		Use:     "ls SANDBOX[:PATH]",
		Short:   "List files of a sandbox",
		Long:    "Lists a directory of a sandbox, or describes a file. Without a path it lists the working directory.",
		Example: "  r sandbox ls sb-4k2j\n  r sandbox ls sb-4k2j:/etc",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exit.Usagef("the sandbox is missing: `r sandbox ls SANDBOX[:PATH]` lists files, `r sandbox list` sandboxes")
			}
			return command.Args(1, 1, "SANDBOX[:PATH]")(cmd, args)
		},
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.list(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVarP(&o.user, "user", "u", "", "user of the sandbox, by name or uid[:gid]")
	return cmd
}

func (o *copyOptions) list(ctx context.Context, arg string) error {
	name, dir, ok := remotePath(arg)
	if !ok {
		name, dir = arg, "."
	}
	c, err := o.client(ctx, name)
	if err != nil {
		return err
	}
	files := []sandbox.FileInfo{} // as JSON, [] and not null
	for after := ""; ; {
		resp, err := c.Files.List(ctx, &sandbox.ListFilesRequest{Sandbox: c.Sandbox, Path: dir, User: c.User, After: after})
		if errs.Is(err, errs.InvalidArgument) && len(files) == 0 { // it may be a file
			i, serr := c.Files.Stat(ctx, &sandbox.FileRequest{Sandbox: c.Sandbox, Path: dir, User: c.User})
			if serr != nil {
				return err
			}
			files = append(files, *i)
			break
		}
		if err != nil {
			return err
		}
		files = append(files, resp.Files...)
		if !resp.More || len(resp.Files) == 0 {
			break
		}
		after = resp.Files[len(resp.Files)-1].Name
	}
	if o.JSON {
		return o.PrintJSON(files)
	}
	rows := make([][]string, len(files))
	for i, f := range files {
		name := f.Name
		if f.Target != "" {
			name += " -> " + f.Target
		}
		rows[i] = []string{
			fileMode(f).String(), fmt.Sprintf("%d:%d", f.UID, f.GID), schema.CellBytes(f.SizeBytes), f.ModifiedAt.Local().Format(time.DateTime), name,
		}
	}
	o.Table([]string{"MODE", "OWNER", "SIZE", "MODIFIED", "NAME"}, rows)
	return nil
}

func fileMode(f sandbox.FileInfo) fs.FileMode {
	m := sandboxfs.Perm(uint32(f.Mode))
	switch f.Type {
	case sandbox.FileTypeDirectory:
		m |= fs.ModeDir
	case sandbox.FileTypeSymlink:
		m |= fs.ModeSymlink
	case sandbox.FileTypeOther:
		m |= fs.ModeIrregular
	}
	return m
}
