package lsvd

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/host"
	"miren.dev/runtime/lsvd/nbd"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// diskFlags say how to open a disk.
type diskFlags struct {
	keyFile              string
	cache                command.Bytes
	maxUnsent            command.Bytes
	remoteFlush          bool
	takeOver, acceptLoss bool
}

func (f *diskFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.keyFile, "key-file", "", "key of an encrypted volume")
	cmd.Flags().BoolVar(&f.takeOver, "take-over", false, "open it although another machine has it, or had it when it died; what that has not sent is lost")
	cmd.Flags().BoolVar(&f.acceptLoss, "accept-loss", false, "open it although data is lost, as an exact state from before")
}

// addTuning defines what only a disk that is in use for long needs.
func (f *diskFlags) addTuning(cmd *cobra.Command) {
	cmd.Flags().Var(&f.cache, "cache", "memory for the read cache (default 64 MiB)")
	cmd.Flags().Var(&f.maxUnsent, "max-unsent", "bytes that may wait for the store before writes do (default 1 GiB)")
	cmd.Flags().BoolVar(&f.remoteFlush, "sync-remote", false, "a flush returns only when the store has the data too")
}

func (f *diskFlags) options(logger *slog.Logger) lsvd.Options {
	return lsvd.Options{Logger: logger, CacheBytes: int64(f.cache), MaxUnsent: int64(f.maxUnsent), RemoteFlush: f.remoteFlush}
}

// openDisk opens a disk in this process.
func (b *base) openDisk(ctx context.Context, volume string, f *diskFlags, logger *slog.Logger) (*host.Disk, error) {
	st, url, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	state, err := b.state()
	if err != nil {
		return nil, err
	}
	key, err := host.ReadKey(f.keyFile)
	if err != nil {
		return nil, err
	}
	d, err := state.Open(ctx, st, host.Spec{Store: url, Volume: volume, Key: key, TakeOver: f.takeOver, AcceptLoss: f.acceptLoss, Options: f.options(logger)})
	if err != nil {
		return nil, err
	}
	if d.Recovery.LostLog || d.Recovery.LostAfter {
		b.Notef("the disk is as it was at sequence number %d; later writes are lost\n", d.Recovery.Last)
	}
	return d, nil
}

type serveOptions struct {
	base
	diskFlags
	socket   string
	listen   string
	readOnly bool
}

func newServe(e *command.Env) *cobra.Command {
	o := &serveOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "serve VOLUME",
		Short:   "Serve a volume by NBD",
		Example: "  r lsvd serve data --socket /tmp/data.sock\n  nbdinfo 'nbd+unix:///?socket=/tmp/data.sock'",
		Long: `Serves the disk to NBD clients (qemu, nbd-client, nbdkit, libnbd) on a unix socket, or with --listen on TCP, until it is interrupted; then it
sends what is unsent and closes the disk.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	o.addTuning(cmd)
	cmd.Flags().StringVar(&o.socket, "socket", "", "path of the unix socket")
	cmd.Flags().StringVar(&o.listen, "listen", "", "address for TCP, as 127.0.0.1:10809")
	cmd.Flags().BoolVar(&o.readOnly, "read-only", false, "refuse writes")
	return cmd
}

func (o *serveOptions) run(ctx context.Context, arg string) (err error) {
	volume, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	if (o.socket == "") == (o.listen == "") {
		return exit.Usagef("give either --socket or --listen")
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 8)) // I/O waits in system calls; see docs/lsvd.md
	logger := slog.New(slog.NewTextHandler(o.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	d, err := o.openDisk(ctx, volume, &o.diskFlags, logger)
	if err != nil {
		return err
	}
	defer o.closeDisk(ctx, d, &err)
	l, uri, err := o.bind(d.Volume.Label())
	if err != nil {
		return err
	}
	srv := nbd.New(logger)
	for _, name := range []string{"", d.Volume.Label()} {
		if err := srv.Add(nbd.Export{Name: name, Disk: d, ReadOnly: o.readOnly}); err != nil {
			l.Close()
			return err
		}
	}
	if o.JSON {
		if err := o.PrintJSONLine(map[string]any{"event": "serving", "volume": d.Volume.Label(), "id": d.Volume.ID.String(), "uri": uri}); err != nil {
			l.Close()
			return err
		}
	}
	o.Printf("%s serving %s at %s; Ctrl-C ends it\n", o.Paint(console.Green, "✓"), d.Volume.Label(), uri)
	return srv.Serve(ctx, l)
}

func (o *serveOptions) bind(volume string) (net.Listener, string, error) {
	if o.socket != "" {
		path, err := filepath.Abs(o.socket)
		if err != nil {
			return nil, "", errs.Wrap(err, "socket")
		}
		l, err := rpc.ListenUnix(path)
		return l, "nbd+unix:///?socket=" + path, err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, "", errs.New(errs.FailedPrecondition, "listen on %s: %w", o.listen, err)
	}
	return l, "nbd://" + l.Addr().String() + "/" + volume, nil
}
