package disks

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"miren.dev/runtime/api/disk"
	api "miren.dev/runtime/api/lsvd"
	ctldisk "miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/rpc"
)

// startTimeout is how long the daemon may take to become ready.
const startTimeout = 30 * time.Second

// Volumes makes volumes, and attaches them through the disk daemon of an
// installation, which it starts if it does not run.
type Volumes struct {
	Instance *instance.Instance
	// Program is the path of the program whose command `lsvd daemon` is the daemon.
	Program string
	Logger  *slog.Logger
}

var _ ctldisk.Volumes = (*Volumes)(nil)

// DefaultStore returns the URL of the store in the state directory.
func (v *Volumes) DefaultStore() (string, error) {
	return host.StoreURL(v.Instance.State("lsvd", "store"))
}

func (v *Volumes) runDir() string { return v.Instance.Socket("lsvd") }

// call calls f with the daemon, which it starts if it does not run.
func (v *Volumes) call(ctx context.Context, f func(api.DisksClient) error) error {
	conn, err := v.connect(ctx)
	if err != nil {
		if err := v.start(ctx); err != nil {
			return err
		}
		if conn, err = v.connect(ctx); err != nil {
			return err
		}
	}
	defer conn.Close()
	return f(api.NewDisksClient(conn))
}

// start starts the daemon and waits until it is ready.
func (v *Volumes) start(ctx context.Context) error {
	ready := func(ctx context.Context) error {
		conn, err := v.connect(ctx)
		if err == nil {
			conn.Close()
		}
		return err
	}
	_, err := proc.Ensure(ctx, proc.Spec{
		Name: "the disk daemon", Path: v.Program,
		Args:    []string{"lsvd", "daemon", "--state-dir", v.Instance.StateDir, "--run-dir", filepath.Dir(v.Instance.RunDir)},
		LogFile: v.Instance.State("logs", "lsvd.log"), RecordFile: Record(v.runDir()), ReadyTimeout: startTimeout, Ready: ready,
	})
	if err != nil && ready(ctx) == nil { // a command, or the holder, has started one at the same time
		return nil
	}
	return err
}

// connect returns a connection to the daemon if it answers.
func (v *Volumes) connect(ctx context.Context) (*rpc.Client, error) {
	sock := Socket(v.runDir())
	if _, err := os.Stat(sock); err != nil {
		return nil, errs.New(errs.Unavailable, "the disk daemon does not run: %w", err)
	}
	conn, err := rpc.NewClient("unix://"+sock, rpc.ClientOptions{RetryFor: -1})
	if err != nil {
		return nil, err
	}
	if _, err := api.NewDisksClient(conn).Status(ctx); err != nil {
		conn.Close()
		return nil, errs.Wrap(err, "ask the disk daemon")
	}
	return conn, nil
}

// Stop stops the daemon, if one runs and has no disk, and waits for its end.
func (v *Volumes) Stop(ctx context.Context) error {
	p, err := proc.Find(Record(v.runDir()))
	if err != nil || p == nil {
		return err
	}
	conn, err := v.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := api.NewDisksClient(conn)
	list, err := c.List(ctx)
	if err != nil || len(list.Disks) > 0 {
		return err
	}
	// The daemon may end before its answer is sent.
	if err := c.Stop(ctx, &api.StopRequest{}); err != nil && !errs.Is(err, errs.Unavailable) {
		return err
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return errs.New(errs.Unavailable, "the disk daemon (pid %d) does not end", p.PID())
	}
}

// named returns the volume with a name, if there is one.
func named(ctx context.Context, st store.Store, name string) (*catalog.Volume, error) {
	v, err := catalog.Find(ctx, st, name)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	return v, err
}

// ensure returns the volume with a name, or makes it.
func ensure(ctx context.Context, url, name string, make func(store.Store) error) (volume string, size int64, err error) {
	st, _, err := host.OpenStore(ctx, url)
	if err != nil {
		return "", 0, err
	}
	v, err := named(ctx, st, name)
	if err != nil {
		return "", 0, err
	}
	if v == nil {
		if err := make(st); err != nil {
			return "", 0, err
		}
		if v, err = catalog.Find(ctx, st, name); err != nil {
			return "", 0, err
		}
	}
	return v.ID.String(), v.Size, nil
}

// Create implements ctldisk.Volumes.
func (v *Volumes) Create(ctx context.Context, url, name string, size int64) (string, int64, error) {
	return ensure(ctx, url, name, func(st store.Store) error {
		_, err := catalog.Create(ctx, st, name, size, nil)
		return err
	})
}

// Clone implements ctldisk.Volumes.
func (v *Volumes) Clone(ctx context.Context, url, volume, snapshot, name string) (string, int64, error) {
	id, err := lsvd.ParseID(volume)
	if err != nil {
		return "", 0, err
	}
	return ensure(ctx, url, name, func(st store.Store) error {
		_, err := catalog.Clone(ctx, st, id, snapshot, name, nil)
		return err
	})
}

// Attach implements ctldisk.Volumes.
func (v *Volumes) Attach(ctx context.Context, url, volume string, takeOver bool) (out ctldisk.Volume, err error) {
	err = v.call(ctx, func(c api.DisksClient) error {
		r, err := c.Attach(ctx, &api.AttachRequest{Store: url, Volume: volume, Block: true, TakeOver: takeOver})
		if err != nil {
			return err
		}
		for _, f := range r.Disk.Frontends {
			if f.Kind == daemon.KindBlock {
				out.Device = f.Address
			}
		}
		if r.Disk.SizeBytes == nil || out.Device == "" {
			return errs.New(errs.Unavailable, "volume %s is %s: %s", volume, r.Disk.State, r.Disk.Message)
		}
		out.SizeBytes, out.Failed = *r.Disk.SizeBytes, r.Disk.State == api.DiskStateFailed
		out.Unsent, out.Opened = unsentOf(r.Disk.Figures), openedOf(&r.Disk)
		return nil
	})
	return out, err
}

// unsentOf returns the unsent changes of a disk; nil if its daemon does not report them.
func unsentOf(f *api.DiskFigures) *ctldisk.Unsent {
	if f == nil || f.Last == nil || f.Durable == nil {
		return nil
	}
	u := &ctldisk.Unsent{Last: *f.Last, Durable: *f.Durable, Most: f.UnsentMostBytes}
	for _, c := range f.Unsent {
		u.Bytes += c.Bytes
		u.Cuts = append(u.Cuts, disk.UnsentCut{Last: c.Last, Bytes: c.Bytes})
	}
	return u
}

// openedOf returns which writes a disk had when it was opened.
func openedOf(d *api.Disk) ctldisk.Opened {
	o := ctldisk.Opened{Lost: d.LostAfter != nil, Damaged: opt.Value(d.Damaged)}
	if d.LostAfter != nil {
		o.After = *d.LostAfter
	}
	return o
}

// Detach implements ctldisk.Volumes.
func (v *Volumes) Detach(ctx context.Context, volume string) error {
	return v.detach(ctx, volume, false)
}

// Abandon detaches a volume whose users have ended. It takes the block device away even
// if the daemon that served it was killed together with its holder: such a device stays
// until its disk is open again, and nothing would wait for that. The log keeps what was
// written.
func (v *Volumes) Abandon(ctx context.Context, volume string) error {
	err := v.detach(ctx, volume, false)
	if errs.Is(err, errs.FailedPrecondition) {
		err = v.detach(ctx, volume, true)
	}
	return err
}

func (v *Volumes) detach(ctx context.Context, volume string, force bool) error {
	return v.call(ctx, func(c api.DisksClient) error {
		_, err := c.Detach(ctx, &api.DetachRequest{Volume: volume, Force: force})
		return err
	})
}

// Resize implements ctldisk.Volumes.
func (v *Volumes) Resize(ctx context.Context, volume string, size int64) error {
	return v.call(ctx, func(c api.DisksClient) error {
		return c.Resize(ctx, &api.ResizeRequest{Volume: volume, SizeBytes: size})
	})
}

// Snapshot implements ctldisk.Volumes.
func (v *Volumes) Snapshot(ctx context.Context, volume, snapshot string) error {
	err := v.call(ctx, func(c api.DisksClient) error {
		return c.Snapshot(ctx, &api.SnapshotRequest{Volume: volume, Snapshot: snapshot})
	})
	if errs.Is(err, errs.AlreadyExists) {
		return nil
	}
	return err
}

// DeleteSnapshot implements ctldisk.Volumes.
func (v *Volumes) DeleteSnapshot(ctx context.Context, url, volume, snapshot string) error {
	st, _, err := host.OpenStore(ctx, url)
	if err != nil {
		return err
	}
	id, err := lsvd.ParseID(volume)
	if err != nil {
		return err
	}
	if err := lsvd.DeleteSnapshot(ctx, st, id, snapshot); err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	v.sweep(ctx, st, url)
	return nil
}

// Delete implements ctldisk.Volumes.
func (v *Volumes) Delete(ctx context.Context, url, volume string, force bool) error {
	st, _, err := host.OpenStore(ctx, url)
	if err != nil {
		return err
	}
	found, err := catalog.Find(ctx, st, volume)
	if err != nil {
		return err
	}
	for _, s := range found.Snapshots { // no entity has those of takeovers
		if _, ok := lsvd.ParseTakeover(s); !ok || !found.Clean && !force {
			continue
		}
		if err := lsvd.DeleteSnapshot(ctx, st, found.ID, s); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	if err := catalog.Delete(ctx, st, found, force); err != nil {
		return err
	}
	state, err := host.Open(v.Instance.State("lsvd"))
	if err != nil {
		return err
	}
	if err := state.Forget(found.ID); err != nil {
		return err
	}
	v.sweep(ctx, st, url)
	return nil
}

// Copy implements ctldisk.Volumes.
func (v *Volumes) Copy(ctx context.Context, url, volume, snapshot, to, as string) (ctldisk.Copied, error) {
	id, err := lsvd.ParseID(volume)
	if err != nil {
		return ctldisk.Copied{}, err
	}
	from, _, err := host.OpenStore(ctx, url)
	if err != nil {
		return ctldisk.Copied{}, err
	}
	other, _, err := host.OpenStore(ctx, to)
	if err != nil {
		return ctldisk.Copied{}, errs.Wrap(err, "store %s", to)
	}
	s, err := lsvd.Copy(ctx, from, id, snapshot, other, as, nil)
	return ctldisk.Copied{Bytes: s.Bytes, Sent: s.SentBytes}, err
}

// DeleteCopy implements ctldisk.Volumes.
func (v *Volumes) DeleteCopy(ctx context.Context, url, volume, as string) error {
	id, err := lsvd.ParseID(volume)
	if err != nil {
		return err
	}
	st, _, err := host.OpenStore(ctx, url)
	if err != nil {
		return err
	}
	if err := lsvd.DeleteCopy(ctx, st, id, as); err != nil {
		return err
	}
	v.sweep(ctx, st, url)
	return nil
}

// maxRestoreUnsent bounds what a volume that is restored has in its log, and
// closeTimeout how long its end waits for a store that does not answer.
const (
	maxRestoreUnsent = 256 << 20
	closeTimeout     = time.Minute
)

// Restore implements ctldisk.Volumes. In the store of the copy the volume is a
// clone, which shares the data of the copy. In another one the data is written to
// it; a restore that was interrupted writes all of it again.
func (v *Volumes) Restore(ctx context.Context, from, volume, as, url, name string) (string, int64, error) {
	id, err := lsvd.ParseID(volume)
	if err != nil {
		return "", 0, err
	}
	src, fromURL, err := host.OpenStore(ctx, from)
	if err != nil {
		return "", 0, errs.Wrap(err, "store %s", from)
	}
	info, err := inspect.InfoSnapshot(ctx, src, id, as)
	if err != nil {
		return "", 0, err
	}
	dst, toURL, err := host.OpenStore(ctx, url)
	if err != nil {
		return "", 0, err
	}
	if fromURL == toURL {
		return v.Clone(ctx, url, volume, as, name)
	}
	restored, size, err := v.Create(ctx, url, name, info.Size)
	if err != nil {
		return "", 0, err
	}
	state, err := host.Open(v.Instance.State("lsvd"))
	if err != nil {
		return "", 0, err
	}
	d, err := state.Open(ctx, dst, host.Spec{Store: toURL, Volume: restored, Options: lsvd.Options{Logger: v.Logger, MaxUnsent: maxRestoreUnsent}})
	if err != nil {
		return "", 0, err
	}
	err = lsvd.ReadSnapshot(ctx, src, id, as, nil, func(off int64, data []byte) error { return d.WriteAt(ctx, data, off, 0) })
	if err == nil {
		err = d.Drain(ctx)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if cerr := d.Close(end); err == nil {
		err = cerr
	}
	return restored, size, err
}

// Salvage implements ctldisk.Volumes.
func (v *Volumes) Salvage(ctx context.Context, url, volume, takeover, name string) (ctldisk.Salvaged, error) {
	var out ctldisk.Salvaged
	made, size, err := ensure(ctx, url, name, func(st store.Store) error {
		state, spec, err := v.stranded(url, volume, takeover)
		if err != nil {
			return err
		}
		spec.As, spec.Options = name, lsvd.Options{Logger: v.Logger, MaxUnsent: maxRestoreUnsent}
		_, _, s, err := state.Salvage(ctx, st, spec)
		if errs.Is(err, errs.Conflict) { // for now
			err = errs.New(errs.Unavailable, "%w", err)
		}
		damaged := s.Flushed > s.Last
		out.Bytes, out.Damaged = &s.Bytes, &damaged
		return err
	})
	out.Volume, out.SizeBytes = made, size
	return out, err
}

// EndSalvage implements ctldisk.Volumes.
func (v *Volumes) EndSalvage(ctx context.Context, url, volume, takeover string) error {
	st, _, err := host.OpenStore(ctx, url)
	if err != nil {
		return err
	}
	state, spec, err := v.stranded(url, volume, takeover)
	if err != nil {
		return err
	}
	err = state.EndSalvage(ctx, st, spec)
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.FailedPrecondition) { // then none was begun
		return nil
	}
	return err
}

// stranded returns how to name a stranded log of a volume.
func (v *Volumes) stranded(url, volume, takeover string) (*host.State, host.SalvageSpec, error) {
	state, err := host.Open(v.Instance.State("lsvd"))
	if err != nil {
		return nil, host.SalvageSpec{}, err
	}
	url, err = host.StoreURL(url)
	return state, host.SalvageSpec{Spec: host.Spec{Store: url, Volume: volume}, Snapshot: takeover}, err
}

// sweep frees the space of deleted volumes. After an error a later one frees the rest.
func (v *Volumes) sweep(ctx context.Context, st store.Store, url string) {
	if _, _, err := lsvd.Sweep(ctx, st); err != nil {
		v.Logger.Warn("space of deleted volumes is not free yet", "store", url, "error", err)
	}
}
