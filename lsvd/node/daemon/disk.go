package daemon

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/lsvd/frontend/nbd"
	"miren.dev/runtime/lsvd/metrics"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// State says whether an attached disk can be used.
type State string

// The states.
const (
	Opening State = "opening" // not tried yet
	Open    State = "open"
	Failed  State = "failed" // cannot be opened, and is tried again; or has failed for good
	Closing State = "closing"
)

// Kinds of frontends.
const (
	KindNBD   = "nbd"
	KindBlock = "block"
)

// Frontend is one way to reach a disk.
type Frontend struct {
	Kind    string
	Address string // URI
}

// Info describes an attached disk.
type Info struct {
	Spec        Spec
	State       State
	Err         error
	Size        int64
	Since       time.Time // open since
	Recovery    lsvd.Recovery
	Frontends   []Frontend
	Stats       lsvd.Stats
	Counts      map[string]*metrics.Disk // by kind of frontend
	StoreCounts *metrics.Store
}

// disk is one attached disk.
type disk struct {
	id   lsvd.ID
	op   sync.Mutex
	gone bool   // under op: no longer in the daemon
	kept uint64 // under op: the disk has failed with this as its newest change, which must not be lost

	mu     sync.Mutex
	spec   Spec
	state  State
	err    error
	since  time.Time
	dev    *host.Disk
	leave  func() // ends the watch of dev and releases its store
	counts map[string]*metrics.Disk
	store  *metrics.Store
	fronts []*front
	cancel context.CancelFunc // ends the attempts to open it again
	halted bool
}

// front is a running frontend.
type front struct {
	Frontend
	lost error // under mu of the disk: why nothing serves it any more
	// release ends the frontend; a block device stays for the next daemon.
	release func()
	// detach removes the frontend; it refuses while its device is in use.
	detach func(ctx context.Context, force bool) error
	resize func(ctx context.Context) error
	// hold gives a block device to the holder again; nil if the frontend has none, or the kernel cannot hand it over.
	hold func(ctx context.Context) error
}

func newDisk(id lsvd.ID, s Spec) *disk { return &disk{id: id, spec: s, state: Opening} }

// begin stores cancel, which ends the attempts to open the disk; false: they must not begin.
func (x *disk) begin(cancel context.CancelFunc) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cancel = cancel
	return !x.halted
}

// halt ends the attempts to open the disk.
func (x *disk) halt() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.halted = true
	if x.cancel != nil {
		x.cancel()
	}
}

// resume permits new attempts after halt.
func (x *disk) resume() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.halted = false
}

func (x *disk) set(s State, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.state, x.err = s, err
}

func (x *disk) view() Spec {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.spec
}

func (x *disk) running() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.dev != nil
}

// device is the open disk. Unavailable: it is not open yet, or not any more.
// FailedPrecondition: it is refused.
func (x *disk) device() (*host.Disk, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.dev != nil && x.state != Closing {
		return x.dev, nil
	}
	class := errs.Unavailable
	if isRefusal(x.err) {
		class = errs.FailedPrecondition
	}
	return nil, errs.New(class, "volume %s is %s", x.spec.label(), x.state).WithHint("`r lsvd info %s` says more", x.spec.label())
}

// start opens the disk and starts its frontends. On an error it undoes its own steps,
// and keeps the block device of an earlier daemon as it was. The caller holds x.op.
func (d *Daemon) start(ctx context.Context, x *disk, fresh, takeOver, acceptLoss bool) error {
	dev, err := d.open(ctx, x, takeOver, acceptLoss)
	if err != nil {
		return err
	}
	s := x.view()
	err = d.saveSpec(x.id, s)
	if err == nil && s.Block {
		err = x.attach(ctx, d)
	}
	for _, l := range s.NBD {
		if err != nil {
			break
		}
		err = x.listen(d, l)
	}
	if err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.CloseTimeout)
		defer cancel()
		if fresh {
			if ferr := x.release(cctx, true); ferr != nil {
				d.logger.Error("attach rollback failed", "volume", s.label(), "error", ferr)
			} else if ferr := d.dropSpec(x.id); ferr != nil {
				d.logger.Error("attach rollback failed", "volume", s.label(), "error", ferr)
			}
		}
		if serr := x.stop(cctx); serr != nil {
			d.logger.Error("disk was not closed clean; the log keeps what the store lacks", "volume", s.label(), "error", serr)
		}
		return err
	}
	x.set(Open, nil)
	d.watch(x, dev)
	return nil
}

// open opens the disk, without its frontends. The caller holds x.op.
func (d *Daemon) open(ctx context.Context, x *disk, takeOver, acceptLoss bool) (*host.Disk, error) {
	s := x.view()
	st, _, release, err := d.stores.use(ctx, s.Store)
	if err != nil {
		return nil, err
	}
	key, err := readKey(ctx, st, x.id, &s)
	if err != nil {
		release()
		return nil, err
	}
	st, counts := metrics.WrapStore(st)
	cache := d.cache
	if key != nil {
		cache = nil // it keeps data as it is, also after the volume is detached
	}
	dev, err := d.cfg.State.Open(ctx, st, host.Spec{Store: s.Store, Volume: s.ID, Key: key, TakeOver: takeOver, AcceptLoss: acceptLoss,
		Options: lsvd.Options{Logger: d.logger, CacheBytes: s.CacheBytes, DiskCache: cache, LogSpace: d.space, Memory: d.memory, MaxUnsent: s.MaxUnsent, RemoteFlush: s.RemoteFlush}})
	if err != nil {
		release()
		return nil, err
	}
	if err := x.keep(ctx, dev, acceptLoss); err != nil {
		if cerr := dev.Close(ctx); cerr != nil {
			d.logger.Error("disk was not closed clean; the log keeps what the store lacks", "volume", s.label(), "error", cerr)
		}
		release()
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.leave = release
	x.dev, x.store, x.counts, x.since = dev, counts, map[string]*metrics.Disk{}, time.Now()
	return dev, nil
}

// counted is the disk as one kind of frontend sees it.
func (x *disk) counted(kind string) *metrics.Disk {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.counts[kind]
	if c == nil {
		c = metrics.NewDisk(x.dev)
		x.counts = maps.Clone(x.counts) // readers have the other one
		x.counts[kind] = c
	}
	return c
}

// listen serves the disk by NBD. The caller holds x.op, and the disk is open.
func (x *disk) listen(d *Daemon, l Listen) error {
	var lis net.Listener
	var cfg *tls.Config
	var err error
	uri := ""
	switch {
	case l.Socket != "":
		lis, err = rpc.ListenUnix(l.Socket)
		uri = "nbd+unix:///?socket=" + l.Socket
	case l.TLS == "" && !l.Plain:
		err = errs.New(errs.InvalidArgument, "%s: disks are served on TCP only with TLS", l.Address).WithHint("give certificates, or choose to serve everybody without")
	default:
		if l.TLS != "" {
			if cfg, err = nbd.LoadTLS(l.TLS, l.Clients); err != nil {
				return err
			}
		}
		if lis, err = net.Listen("tcp", l.Address); err != nil {
			return errs.New(errs.FailedPrecondition, "listen for NBD: %w", err)
		}
		scheme := "nbd://"
		if cfg != nil {
			scheme = "nbds://"
		}
		uri = scheme + lis.Addr().String() + "/" + x.spec.label()
	}
	if err != nil {
		return err
	}
	srv := nbd.New(d.logger)
	disk := x.counted(KindNBD)
	for _, name := range []string{"", x.spec.label()} {
		if err := srv.Add(nbd.Export{Name: name, Disk: disk, ReadOnly: x.spec.ReadOnly}); err != nil {
			lis.Close()
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve := srv.Serve
		switch {
		case cfg != nil:
			serve = func(ctx context.Context, l net.Listener) error { return srv.ServeTLS(ctx, l, cfg) }
		case l.Plain:
			serve = srv.ServePlain
		}
		if err := serve(ctx, lis); err != nil {
			d.logger.Error("disk is no longer served", "volume", x.spec.label(), "address", uri, "error", err)
		}
	}()
	x.mu.Lock()
	defer x.mu.Unlock()
	end := func() { cancel(); <-done }
	x.fronts = append(x.fronts, &front{Frontend: Frontend{KindNBD, uri}, release: end,
		detach: func(context.Context, bool) error { end(); return nil }, resize: func(context.Context) error { return nil }})
	return nil
}

// attach makes a block device of the disk, or goes on with the one of the
// daemon before. The caller holds x.op, and the disk is open.
func (x *disk) attach(ctx context.Context, d *Daemon) error {
	if x.spec.ReadOnly {
		return errs.New(errs.InvalidArgument, "volume %s is read-only and cannot be a block device", x.spec.label()).WithHint("serve it by NBD")
	}
	a, err := loop.Attach(ctx, x.counted(KindBlock), d.attachOptions(x))
	if err != nil {
		return err
	}
	watched := make(chan struct{})
	f := &front{Frontend: Frontend{KindBlock, a.Path()}, release: func() { a.Release(); <-watched }, resize: a.Resize,
		detach: func(ctx context.Context, force bool) error {
			var err error
			if force {
				err = a.Abandon(ctx)
			} else {
				ctx, cancel := context.WithTimeout(ctx, detachTimeout)
				defer cancel()
				err = a.Detach(ctx)
			}
			if dev, derr := x.device(); err != nil && !errs.Is(err, errs.FailedPrecondition) && derr == nil && dev.Err() != nil {
				err = a.Abandon(ctx) // it has no users, and a disk that has failed is never flushed
			}
			if err == nil {
				<-watched
			}
			return err
		}}
	go func() {
		defer close(watched)
		x.watchServing(d, f, a)
	}()
	if a.HandsOver() {
		f.hold = func(ctx context.Context) error { return a.Hold(ctx, d.cfg.Holder) }
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fronts = append(x.fronts, f)
	return nil
}

// watchServing tells that a block device is not served any more, which the daemon has not ended itself.
func (x *disk) watchServing(d *Daemon, f *front, a *loop.Attachment) {
	err := a.Err()
	if err == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	f.lost = errs.New(errs.Unavailable, "the block device %s is no longer served, so its users get I/O errors: %w", f.Address, err).
		WithHint("end its users, then `r lsvd detach %s` (or --force), and attach it again; no acknowledged write is lost", x.spec.label())
	d.logger.Error("block device of a disk is no longer served: its users get I/O errors until the disk is detached and attached again",
		"volume", x.spec.label(), "device", f.Address, "error", err)
}

// Hold gives all block devices to the holder again, for when that was restarted and so has none. Disks that are being
// changed are waited for. Errors: those of [loop.Holder]; then some devices may not be held.
func (d *Daemon) Hold(ctx context.Context) error {
	var g errgroup.Group
	for _, x := range d.all() {
		g.Go(func() error {
			x.op.Lock()
			defer x.op.Unlock()
			for _, f := range x.fronts {
				if f.hold == nil {
					continue
				}
				if err := f.hold(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// attachOptions say how the block device of a disk is made.
func (d *Daemon) attachOptions(x *disk) loop.Options {
	return loop.Options{Owner: d.cfg.State.ID(), Volume: x.id.String(), Dir: filepath.Join(d.cfg.RunDir, "block"), Holder: d.cfg.Holder, Logger: d.logger}
}

// detachTimeout bounds the wait for processes that have a device open.
const detachTimeout = 10 * time.Second

// release ends the frontends. If one refuses, it and the frontends after it keep
// running. The caller holds x.op.
func (x *disk) release(ctx context.Context, force bool) error {
	x.mu.Lock()
	fronts := slices.Clone(x.fronts)
	x.mu.Unlock()
	// Those that refuse come first: a block device.
	slices.SortStableFunc(fronts, func(a, b *front) int { return strings.Compare(a.Kind, b.Kind) })
	for _, f := range fronts {
		if err := f.detach(ctx, force); err != nil {
			return err
		}
		x.mu.Lock()
		x.fronts = slices.DeleteFunc(slices.Clone(x.fronts), func(o *front) bool { return o == f })
		x.mu.Unlock()
	}
	return nil
}

// blockDevice names the block device of the disk, if it has one.
func (x *disk) blockDevice() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.fronts {
		if f.Kind == KindBlock {
			return f.Address
		}
	}
	return ""
}

// resize makes the disk larger. The caller holds x.op.
func (x *disk) resize(ctx context.Context, size int64) error {
	dev, err := x.device()
	if err != nil {
		return err
	}
	if err := dev.Resize(ctx, size); err != nil {
		return err
	}
	x.mu.Lock()
	fronts := slices.Clone(x.fronts)
	x.mu.Unlock()
	for _, f := range fronts {
		if err := f.resize(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stop releases the frontends, so that the next daemon can continue them, and closes
// the disk. The caller holds x.op.
func (x *disk) stop(ctx context.Context) error {
	x.mu.Lock()
	dev, fronts := x.dev, x.fronts
	if dev != nil {
		x.state = Closing
	}
	x.mu.Unlock()
	for _, f := range fronts {
		f.release()
	}
	var err error
	if dev != nil {
		err = dev.Close(ctx)
		x.leave()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dev, x.fronts = nil, nil
	return err
}

func (x *disk) info() Info {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := Info{Spec: x.spec, State: x.state, Err: x.err, Since: x.since, Counts: x.counts, StoreCounts: x.store}
	if x.dev == nil {
		return i
	}
	i.Size, i.Recovery, i.Stats = x.dev.Size(), x.dev.Recovery, x.dev.Stats()
	for _, f := range x.fronts {
		i.Frontends = append(i.Frontends, f.Frontend)
		if f.lost != nil && x.state == Open {
			i.State, i.Err = Failed, f.lost
		}
	}
	if err := x.dev.Err(); err != nil && x.state == Open {
		i.State, i.Err = Failed, err
	}
	return i
}
