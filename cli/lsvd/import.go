package lsvd

import (
	"context"
	"io"
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
	"miren.dev/runtime/pkg/errs"
)

type importOptions struct {
	base
	format  string
	size    string
	encrypt bool
	keyFile string
}

func newImport(e *command.Env) *cobra.Command {
	o := &importOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "import FILE VOLUME",
		Short:   "Make a volume from a disk image",
		Example: "  r lsvd import debian.qcow2 root\n  zstdcat disk.zst | r lsvd import - data --size 10G",
		Long: `Makes a volume from a disk image or block device, or with - from standard input. Holes and zeros of the image take no
space. It detects raw and qcow2; name other formats with --format. Formats other than raw need qemu-img.

The volume appears under its name when the store has all data. A command that fails removes the incomplete volume.`,
		Args: command.Args(2, 2, "FILE", "VOLUME"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	o.flags(cmd)
	cmd.Flags().StringVarP(&o.format, "format", "f", "", "format of the image: "+strings.Join(formats, ", ")+" (default: raw or qcow2, as detected)")
	cmd.Flags().StringVarP(&o.size, "size", "s", "", "size of the volume, if larger than the image")
	cmd.Flags().BoolVar(&o.encrypt, "encrypt", false, "encrypt the segments; needs --key-file")
	cmd.Flags().StringVar(&o.keyFile, "key-file", "", "file with the key; created if it does not exist")
	return cmd
}

// image is the imported image.
type image struct {
	file   *os.File // nil: the image is a stream
	stream io.Reader
	path   string
	format string
	size   int64 // size of the disk in it; 0: unknown
}

func (o *importOptions) run(ctx context.Context, path, name string) error {
	if o.format != "" && !slices.Contains(formats, o.format) {
		return exit.Usagef("--format %s is none of %s", o.format, strings.Join(formats, ", "))
	}
	if o.encrypt != (o.keyFile != "") {
		return exit.Usagef("--encrypt and --key-file must be given together")
	}
	size := int64(0)
	if o.size != "" {
		var err error
		if size, err = sizeArg(o.size); err != nil {
			return err
		}
	}
	img, err := o.openImage(ctx, path)
	if err != nil {
		return err
	}
	if img.file != nil {
		defer img.file.Close()
	}
	switch {
	case size == 0 && img.size == 0:
		return exit.Usagef("--size is missing: the size of a stream is not known before its end")
	case size == 0:
		size = (img.size + lsvd.BlockSize - 1) / lsvd.BlockSize * lsvd.BlockSize
	case size < img.size:
		return errs.New(errs.FailedPrecondition, "the image has %s and does not fit into %s", bytesCell(img.size), bytesCell(size)).WithHint("leave out --size, or give a larger one")
	}
	st, url, err := o.open(ctx)
	if err != nil {
		return err
	}
	key, made, err := o.key(o.keyFile)
	if err != nil {
		return err
	}
	p := o.Progress("import "+name, true)
	id, err := catalog.Make(ctx, st, name, func(id lsvd.ID) error { return o.fill(ctx, st, url, id, size, key, img, p) })
	took := p.End()
	if err != nil {
		return err
	}
	if made {
		o.Notef("wrote a new key to %s: keep a copy, without it the volume cannot be read\n", o.keyFile)
	}
	i, err := inspect.Info(ctx, st, id)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSONLine(map[string]any{"event": "result", "id": id.String(), "name": name, "size_bytes": size, "stored_bytes": i.Stored,
			"store": url, "format": img.format, "seconds": took.Seconds(), "encrypted": key != nil})
	}
	o.Printf("%s imported %s to %s (%s): %s, %s stored, in %s\n", o.Paint(console.Green, "✓"), path, name, id, bytesCell(size), bytesCell(i.Stored), took.Round(10*time.Millisecond))
	return nil
}

// key reads the key, or creates one.
func (b *base) key(path string) (key []byte, made bool, err error) {
	if path == "" {
		return nil, false, nil
	}
	if key, err = host.ReadKey(path); errs.Is(err, errs.NotFound) {
		key, err = host.NewKey(path)
		return key, true, err
	}
	return key, false, err
}

// openImage opens the image and detects its format and size.
func (o *importOptions) openImage(ctx context.Context, path string) (*image, error) {
	img := &image{path: path, format: o.format}
	if path == "-" {
		if o.format != "" && o.format != "raw" {
			return nil, exit.Usagef("a stream must be raw; %s needs a file", o.format)
		}
		img.stream, img.format = o.In, "raw"
		return img, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, errs.Wrap(err, "import")
	}
	img.file = f
	if st, err := f.Stat(); err == nil && st.IsDir() {
		f.Close()
		return nil, errs.New(errs.InvalidArgument, "%s is a directory, not an image", path)
	}
	if img.format == "" {
		img.format = detect(f)
	}
	if img.format == "raw" {
		// Seek also returns the size of a block device.
		if img.size, err = f.Seek(0, io.SeekEnd); err == nil && img.size == 0 {
			err = errs.New(errs.InvalidArgument, "image %s is empty", path)
		}
	} else {
		if img.path, err = filepath.Abs(path); err == nil {
			img.size, err = qemuInfo(ctx, img.path, img.format)
		}
	}
	if err != nil {
		f.Close()
		return nil, errs.Wrap(err, "import")
	}
	return img, nil
}

// fill makes the volume and copies the image to it. After an error it removes the volume.
func (o *importOptions) fill(ctx context.Context, st store.Store, url string, id lsvd.ID, size int64, key []byte, img *image, p *console.Progress) (err error) {
	if err := lsvd.Create(ctx, st, id, size, key); err != nil {
		return err
	}
	state, err := o.state()
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		if derr := discard(ctx, st, state, id); derr != nil {
			o.Notef("also: %v\n", derr)
		}
	}()
	d, err := state.Open(ctx, st, host.Spec{Store: url, Volume: id.String(), Key: key})
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			o.closeDisk(ctx, d, &err)
			return
		}
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = d.Close(now) // the volume is deleted: no data needs to be sent
	}()
	total := img.size
	if total == 0 {
		total = size
	}
	told := func(done int64) { p.Set(done, total) }
	switch {
	case img.stream != nil:
		err = copyStream(ctx, d, img.stream, told)
	case img.format == "raw":
		err = copyIn(ctx, d, img.file, img.size, told)
	default:
		counted := metrics.NewDisk(d)
		err = byNBD(ctx, d, counted, func(uri string) error {
			stop := follow(func() {
				told(counted.Figures(metrics.Write).Bytes + counted.Figures(metrics.Zero).Bytes + counted.Figures(metrics.Trim).Bytes)
			})
			defer stop()
			_, err := qemu(ctx, "convert", "-n", "-W", "-f", img.format, "-O", "raw", img.path, uri)
			return err
		})
	}
	if err != nil {
		return err
	}
	p.Phase("send " + strings.TrimPrefix(p.What(), "import "))
	return drain(ctx, d, p)
}

// progressInterval is how often the progress of an import is read.
const progressInterval = 100 * time.Millisecond

// follow calls f periodically until the caller calls stop.
func follow(f func()) (stop func()) {
	done, quit := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(progressInterval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				f()
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// drain waits until the store has all data, without a time limit.
func drain(ctx context.Context, d *host.Disk, p *console.Progress) error {
	all := d.Stats().UnsentBytes
	stop := follow(func() { p.Set(all-d.Stats().UnsentBytes, all) })
	defer stop()
	return d.Drain(ctx)
}
