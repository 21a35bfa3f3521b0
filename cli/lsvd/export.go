package lsvd

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/metrics"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

type exportOptions struct {
	base
	diskFlags
	format string
	force  bool
}

func newExport(e *command.Env) *cobra.Command {
	o := &exportOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "export VOLUME[@SNAPSHOT] FILE",
		Short:   "Write a volume to a disk image",
		Example: "  r lsvd export data@monday monday.qcow2\n  r lsvd export data - | zstd > data.zst",
		Long: `Writes a volume, or a snapshot of it, to an image file, or with - to standard output. The image of a volume in use has
its state at the start of the command. The name of the file decides the format (.qcow2, .vmdk, ...); otherwise the image
is raw, with holes where the disk has no data. Formats other than raw need qemu-img. The file appears under its name
when it is complete.`,
		Args:              command.Args(2, 2, "VOLUME", "FILE"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	cmd.Flags().StringVarP(&o.format, "format", "f", "", "format of the image: "+strings.Join(formats, ", "))
	cmd.Flags().BoolVar(&o.force, "force", false, "replace the file if it exists")
	return cmd
}

func (o *exportOptions) run(ctx context.Context, arg, path string) error {
	name, snap, err := volumeArg(arg, true)
	if err != nil {
		return err
	}
	format := o.format
	if ext := strings.TrimPrefix(filepath.Ext(path), "."); format == "" && slices.Contains(formats, ext) {
		format = ext
	}
	format = cmp.Or(format, "raw")
	switch {
	case !slices.Contains(formats, format):
		return exit.Usagef("--format %s is none of %s", format, strings.Join(formats, ", "))
	case path == "-" && format != "raw":
		return exit.Usagef("standard output takes only raw images")
	case path == "-" && o.JSON:
		return exit.Usagef("--json and the image would both be on standard output")
	case format != "raw":
		if _, err := qemuImg(); err != nil {
			return err
		}
	}
	if path != "-" {
		switch st, err := os.Stat(path); {
		case err == nil && !st.Mode().IsRegular():
			return errs.New(errs.FailedPrecondition, "%s is not a regular file", path).WithHint("`r lsvd export %s - > %s` writes to it sequentially", arg, path)
		case err == nil && !o.force:
			return errs.New(errs.AlreadyExists, "%s exists", path).WithHint("--force replaces it")
		}
	}
	st, url, v, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	p := o.Progress("export "+arg, true)
	if path == "-" {
		p.NoBar() // standard output is the image
	}
	var size, data int64
	err = o.frozen(ctx, st, url, v, snap, func(d *host.Disk) error {
		size = d.Size()
		parts, total, err := extents(d)
		if err != nil {
			return err
		}
		data = total
		if path == "-" {
			return streamOut(ctx, d, o.Out, func(done int64) { p.Set(done, size) })
		}
		return o.write(ctx, d, path, format, parts, total, p)
	})
	took := p.End()
	if err != nil || path == "-" {
		return err
	}
	if o.JSON {
		return o.PrintJSONLine(map[string]any{"event": "result", "volume": arg, "id": v.ID.String(), "file": path, "format": format, "size_bytes": size,
			"data_bytes": data, "seconds": took.Seconds()})
	}
	o.Printf("%s exported %s to %s: %s, %s of it data, in %s\n", o.Paint(console.Green, "✓"), arg, path, bytesCell(size), bytesCell(data), took.Round(10*time.Millisecond))
	return nil
}

// frozen calls f with a temporary clone of the volume, which shares all data
// with it. The volume may be in use meanwhile.
func (o *exportOptions) frozen(ctx context.Context, st store.Store, url string, v *catalog.Volume, snap string, f func(*host.Disk) error) (err error) {
	state, err := o.state()
	if err != nil {
		return err
	}
	key, err := host.ReadKey(o.keyFile)
	if err == nil {
		err = host.CheckKey(v, key)
	}
	if err != nil {
		return err
	}
	id := lsvd.NewID()
	if err := o.withSnapshot(ctx, st, v, snap, &o.diskFlags, func(snap string) error { return lsvd.Clone(ctx, st, v.ID, snap, id, key) }); err != nil {
		return err
	}
	defer func() {
		if derr := discard(ctx, st, state, id); derr != nil && err == nil {
			err = derr
		}
	}()
	d, err := state.Open(ctx, st, host.Spec{Store: url, Volume: id.String(), Key: key})
	if err != nil {
		return err
	}
	defer o.closeDisk(ctx, d, &err)
	return f(d)
}

// write writes the image to a temporary file in path's directory, and renames
// it to path when it is complete.
func (o *exportOptions) write(ctx context.Context, d *host.Disk, path, format string, parts []inspect.Range, total int64, p *console.Progress) (err error) {
	f, err := atomicfile.Create(path, 0o600)
	if err != nil {
		return errs.Wrap(err, "export")
	}
	defer f.Abort()
	told := func(done int64) { p.Set(done, total) }
	if format == "raw" {
		if err = f.Truncate(d.Size()); err == nil {
			err = copyOut(ctx, d, f.File, parts, told)
		}
	} else {
		counted := metrics.NewDisk(d)
		err = byNBD(ctx, d, counted, func(uri string) error {
			stop := follow(func() { told(min(counted.Figures(metrics.Read).Bytes, total)) })
			defer stop()
			_, err := qemu(ctx, "convert", "-W", "-f", "raw", "-O", format, uri, f.Name())
			return err
		})
	}
	if err == nil {
		err = f.Commit()
	}
	return errs.Wrap(err, "export to %s", path)
}
