package sandbox

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/transfer"
	"miren.dev/runtime/pkg/errs"
)

type copyOptions struct {
	*command.Env
	user string
}

func newCopy(e *command.Env) *cobra.Command {
	o := &copyOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files and folders into a sandbox or out of it",
		Long: `Copies a file or a folder. One side is SANDBOX:PATH, the other a path of this machine, or - for standard input or
output: the content of a file, or a tar archive of a folder. A relative path of a sandbox is below its working
directory. A file or folder is copied into a destination that is a folder, and otherwise to that name; of SOURCE/. the
contents are copied. Permissions are kept; in the sandbox its user owns the files.`,
		Example: "  r sandbox cp main.py sb-4k2j:\n  r sandbox cp ./data sb-4k2j:/tmp/data\n  r sandbox cp sb-4k2j:results.csv .\n  tar c . | r sandbox cp - sb-4k2j:/tmp/",
		Args:    command.Args(2, 2, "SOURCE", "DESTINATION"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	cmd.Flags().StringVarP(&o.user, "user", "u", "", "user of the sandbox, by name or uid[:gid]")
	return cmd
}

// remotePath splits SANDBOX:PATH. A path of this machine with a colon is written
// as ./a:b.
func remotePath(arg string) (name, file string, ok bool) {
	name, file, ok = strings.Cut(arg, ":")
	if !ok || name == "" || strings.ContainsAny(name, `/\`) || runtime.GOOS == "windows" && len(name) == 1 {
		return "", arg, false
	}
	if file == "" {
		file = "."
	}
	return name, file, true
}

func (o *copyOptions) run(ctx context.Context, source, destination string) error {
	from, fromPath, download := remotePath(source)
	to, toPath, upload := remotePath(destination)
	switch {
	case download && upload:
		return exit.Usagef("both sides are sandboxes: copy by way of this machine, or pipe `r sandbox cp %s -`", source)
	case !download && !upload:
		return exit.Usagef("no side is a sandbox: give it as SANDBOX:PATH, such as sb-4k2j:%s", destination)
	}
	c, err := o.client(ctx, from+to) // one of both is empty
	if err != nil {
		return err
	}
	if download {
		return o.download(ctx, c, fromPath, toPath)
	}
	return o.upload(ctx, c, fromPath, toPath)
}

// client returns what copies files of a sandbox.
func (o *copyOptions) client(ctx context.Context, name string) (*transfer.Client, error) {
	s, err := find(ctx, o.Env, name)
	if err != nil {
		return nil, err
	}
	conn, err := o.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &transfer.Client{Files: sandbox.NewFilesClient(conn), Sandbox: s.GetID(), User: o.user}, nil
}

// stdio is the path of standard input or output.
const stdio = "-"

func (o *copyOptions) download(ctx context.Context, c *transfer.Client, from, to string) error {
	content, err := c.Get(ctx, from)
	if err != nil {
		return err
	}
	defer content.Close()
	p := o.Progress("copy "+from, false)
	defer p.End()
	var done int64
	content.Reader = transfer.CountReader(content.Reader, func(n int) { done += int64(n); p.Set(done, content.Size) })
	if to == stdio {
		p.NoBar()
		_, err := io.Copy(o.Out, content)
		return err
	}
	return content.Save(to, transfer.Base(from))
}

func (o *copyOptions) upload(ctx context.Context, c *transfer.Client, from, to string) error {
	dir, err := c.IsDir(ctx, to)
	if err != nil {
		return err
	}
	dir = dir || strings.HasSuffix(to, "/")
	p := o.Progress("copy "+from, false)
	defer p.End()
	if from == stdio {
		var done int64
		in := transfer.CountReader(o.In, func(n int) { done += int64(n); p.Set(done, 0) })
		if dir {
			return c.PutArchive(ctx, in, to)
		}
		return c.PutFile(ctx, in, to, 0)
	}
	info, err := os.Stat(from)
	if err != nil {
		return exit.Usagef("%v", err)
	}
	if dir && !strings.HasSuffix(filepath.ToSlash(from), "/.") {
		abs, err := filepath.Abs(from)
		if err != nil {
			return errs.New(errs.FailedPrecondition, "%w", err)
		}
		to = path.Join(to, filepath.Base(abs))
	}
	var done atomic.Int64
	total := size(from, info)
	count := func(n int) { p.Set(done.Add(int64(n)), total) }
	if info.IsDir() {
		return c.PutDir(ctx, from, to, count)
	}
	f, err := os.Open(from)
	if err != nil {
		return exit.Usagef("%v", err)
	}
	defer f.Close()
	return c.PutFile(ctx, transfer.CountReader(f, count), to, info.Mode())
}

// size returns the bytes of a file, or of the files in a directory, for the
// progress; what cannot be read is left out.
func size(name string, info fs.FileInfo) int64 {
	if !info.IsDir() {
		return info.Size()
	}
	total := int64(0)
	_ = filepath.WalkDir(name, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	return total
}
