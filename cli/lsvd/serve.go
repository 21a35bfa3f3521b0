package lsvd

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/nbd"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// diskFlags are the options for opening a disk.
type diskFlags struct {
	keyFile              string
	cache                command.Bytes
	maxUnsent            command.Bytes
	remoteFlush          bool
	takeOver, acceptLoss bool
}

func (f *diskFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.keyFile, "key-file", "", "key of an encrypted volume")
	cmd.Flags().BoolVar(&f.takeOver, "take-over", false, "open it although another machine has it open, or crashed with it; unsent data of that machine is lost")
	cmd.Flags().BoolVar(&f.acceptLoss, "accept-loss", false, "open it although data is lost, in an exact earlier state")
}

// addTuning defines the flags of disks that stay open.
func (f *diskFlags) addTuning(cmd *cobra.Command) {
	cmd.Flags().Var(&f.cache, "cache", "memory for the read cache (default 64 MiB)")
	cmd.Flags().Var(&f.maxUnsent, "max-unsent", "unsent bytes above which writes wait for the store (default 1 GiB)")
	cmd.Flags().BoolVar(&f.remoteFlush, "sync-remote", false, "a flush waits until the store has the data")
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
		b.Notef("opened the disk in its state at sequence number %d; later writes are not in it\n", d.Recovery.Last)
	}
	b.noteStranded(d.Volume.ID.String(), d.Volume.Label())
	return d, nil
}

type serveOptions struct {
	base
	diskFlags
	foreground bool
	socket     string
	listen     string
	tls        string
	clients    bool
	plain      bool
	readOnly   bool
}

func newServe(e *command.Env) *cobra.Command {
	o := &serveOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "serve VOLUME",
		Short: "Serve a volume by NBD",
		Example: "  r lsvd serve data\n  r lsvd serve data --listen 0.0.0.0:10809 --tls /etc/pki/nbd --tls-clients\n" +
			"  r lsvd serve data --foreground --socket /tmp/data.sock",
		Long: `Serves the disk to NBD clients (qemu, nbd-client, nbdkit, libnbd) on a unix socket, or with --listen on TCP, and prints
the address.

The disk daemon serves it until ` + "`r lsvd detach`" + `, also after a restart of the daemon. With --foreground this command serves it
until it is interrupted; then it sends unsent data and closes the disk.

TCP needs certificates: --tls names a directory with server-cert.pem, server-key.pem and ca-cert.pem.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	o.addTuning(cmd)
	cmd.Flags().BoolVar(&o.foreground, "foreground", false, "serve in this process until it is interrupted")
	cmd.Flags().StringVar(&o.socket, "socket", "", "path of the unix socket (default: one in the run directory)")
	cmd.Flags().StringVar(&o.listen, "listen", "", "address for TCP, as 127.0.0.1:10809")
	cmd.Flags().StringVar(&o.tls, "tls", "", "directory of certificates for TCP")
	cmd.Flags().BoolVar(&o.clients, "tls-clients", false, "accept only clients with a certificate signed by ca-cert.pem")
	cmd.Flags().BoolVar(&o.plain, "plain", false, "TCP without TLS: every client that can connect reads and writes the disk")
	cmd.Flags().BoolVar(&o.readOnly, "read-only", false, "refuse writes")
	cmd.MarkFlagsMutuallyExclusive("socket", "listen")
	cmd.MarkFlagsMutuallyExclusive("plain", "tls")
	return cmd
}

func (o *serveOptions) run(ctx context.Context, arg string) error {
	volume, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	if o.listen != "" && o.tls == "" && !o.plain {
		return exit.Usagef("--listen needs --tls with a directory of certificates, or --plain to serve every client that can connect")
	}
	if o.listen == "" && (o.tls != "" || o.plain) {
		return exit.Usagef("--tls and --plain are for TCP: give --listen")
	}
	if o.socket != "" {
		if o.socket, err = filepath.Abs(o.socket); err != nil {
			return errs.Wrap(err, "socket")
		}
	}
	if o.tls != "" {
		if o.tls, err = filepath.Abs(o.tls); err != nil {
			return errs.Wrap(err, "certificates")
		}
	}
	if o.foreground {
		return o.serve(ctx, volume)
	}
	req, err := o.request(volume, &o.diskFlags)
	if err != nil {
		return err
	}
	req.ReadOnly = o.readOnly
	req.Nbd = []api.Listen{{Socket: o.socket, Address: o.listen, TLS: o.tls, Clients: o.clients, Plain: o.plain}}
	disk, err := o.attachDisk(ctx, req)
	if err != nil || disk == nil {
		return err
	}
	for _, f := range disk.Frontends {
		o.Printf("%s serving %s at %s\n", o.Paint(console.Green, "✓"), label(disk), f.Address)
	}
	return nil
}

// request returns a request to the daemon to attach a disk.
func (b *base) request(volume string, f *diskFlags) (*api.AttachRequest, error) {
	url, err := b.url()
	if err != nil {
		return nil, err
	}
	req := &api.AttachRequest{Store: url, Volume: volume, RemoteFlush: f.remoteFlush, TakeOver: f.takeOver, AcceptLoss: f.acceptLoss,
		CacheBytes: f.cache.Ptr(), MaxUnsentBytes: f.maxUnsent.Ptr()}
	if f.keyFile != "" {
		if req.KeyFile, err = filepath.Abs(f.keyFile); err != nil {
			return nil, errs.Wrap(err, "key file")
		}
	}
	return req, nil
}

func label(d *api.Disk) string { return cmp.Or(d.Name, d.ID) }

// serve serves in this process.
func (o *serveOptions) serve(ctx context.Context, volume string) (err error) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), procs))
	logger := slog.New(slog.NewTextHandler(o.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	d, err := o.openDisk(ctx, volume, &o.diskFlags, logger)
	if err != nil {
		return err
	}
	defer o.closeDisk(ctx, d, &err)
	l, cfg, uri, err := o.bind(d.Volume.Label())
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
	o.Printf("%s serving %s at %s until Ctrl-C\n", o.Paint(console.Green, "✓"), d.Volume.Label(), uri)
	switch {
	case cfg != nil:
		return srv.ServeTLS(ctx, l, cfg)
	case o.plain:
		return srv.ServePlain(ctx, l)
	}
	return srv.Serve(ctx, l)
}

func (o *serveOptions) bind(volume string) (net.Listener, *tls.Config, string, error) {
	if o.listen == "" {
		path := o.socket
		if path == "" {
			in, err := o.instance()
			if err != nil {
				return nil, nil, "", err
			}
			path = in.Socket("lsvd", "nbd", volume+".sock")
			if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
				return nil, nil, "", errs.Wrap(err, "make the run directory")
			}
		}
		l, err := rpc.ListenUnix(path)
		return l, nil, "nbd+unix:///?socket=" + path, err
	}
	var cfg *tls.Config
	scheme := "nbd://"
	if o.tls != "" {
		var err error
		if cfg, err = nbd.LoadTLS(o.tls, o.clients); err != nil {
			return nil, nil, "", err
		}
		scheme = "nbds://"
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, nil, "", errs.New(errs.FailedPrecondition, "listen on %s: %w", o.listen, err)
	}
	return l, cfg, scheme + l.Addr().String() + "/" + volume, nil
}
