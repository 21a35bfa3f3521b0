// Package daemon keeps many disks open in one process: it opens them, serves
// them by their frontends (package nbd), and opens them again when it starts,
// also after it was killed. The client that asked for a disk may be long gone.
//
// What is attached is a file per volume (see [Spec]), written when a disk is
// open and its frontends serve, and removed by Detach. A daemon that stops
// closes its disks and leaves the files, so the next one goes on with them.
// One that cannot be opened is tried again and listed with the reason; it never
// becomes an empty disk, and it is never taken over from another process without
// being told so. Before the daemon opens a disk it claims the block devices of its
// predecessor: their users wait while a store does not answer.
//
// Lock order: disk.op (one change of a disk at a time, held over everything
// slow), then Daemon.mu, then disk.mu.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/lsvd/metrics"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// Config configures a daemon.
type Config struct {
	State  *host.State
	RunDir string // where sockets are, absolute
	Logger *slog.Logger
	// CloseTimeout bounds how long a disk may send unsent data when the daemon
	// stops; 30 s. The log keeps the data that was not sent.
	CloseTimeout time.Duration
	// RefusedTimeout is how long users of a block device wait for a disk that
	// cannot be opened for a reason other than its store; 30 s. Then they get I/O
	// errors.
	RefusedTimeout time.Duration
	// Holder keeps block devices while no daemon runs; nil: they fail then.
	Holder loop.Holder
	// DiskCacheBytes bounds what all disks together keep of remote stores in
	// the directory cache of the state directory; 0: nothing. Encrypted
	// volumes keep nothing there.
	DiskCacheBytes int64
	// LogSpaceBytes bounds the local logs of all open disks together; 0: not
	// at all. See [lsvd.LogSpace].
	LogSpaceBytes int64
	// MemoryBytes bounds what all open disks together keep in memory to be read
	// again; 0: not at all. See [lsvd.Memory].
	MemoryBytes int64
}

// Daemon keeps disks open.
type Daemon struct {
	cfg    Config
	logger *slog.Logger
	ready  chan struct{}
	cache  *lsvd.DiskCache // nil: none
	space  *lsvd.LogSpace  // nil: no bound
	memory *lsvd.Memory    // nil: no bound
	stores stores

	mu      sync.Mutex
	ctx     context.Context // ends when the daemon stops; nil before Run
	stopped bool
	disks   map[lsvd.ID]*disk
	retries sync.WaitGroup
}

// New makes a daemon; Run starts it.
func New(cfg Config) (*Daemon, error) {
	if cfg.State == nil || !filepath.IsAbs(cfg.RunDir) {
		return nil, errs.New(errs.InvalidArgument, "the daemon needs a state directory and an absolute run directory, not %q", cfg.RunDir)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.CloseTimeout == 0 {
		cfg.CloseTimeout = 30 * time.Second
	}
	if cfg.RefusedTimeout == 0 {
		cfg.RefusedTimeout = 30 * time.Second
	}
	d := &Daemon{cfg: cfg, logger: cfg.Logger, ready: make(chan struct{}), disks: map[lsvd.ID]*disk{}}
	if cfg.LogSpaceBytes > 0 {
		d.space = lsvd.NewLogSpace(cfg.LogSpaceBytes)
	}
	if cfg.MemoryBytes > 0 {
		d.memory = lsvd.NewMemory(cfg.MemoryBytes)
	}
	return d, nil
}

// Ready is closed when the daemon has its state directory and may be used.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Run serves the disks until ctx ends; then it closes all disks. A second one on
// the same state directory fails with FailedPrecondition.
func (d *Daemon) Run(ctx context.Context) error {
	lock, err := d.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	for _, dir := range []string{d.cfg.RunDir, filepath.Join(d.cfg.RunDir, "nbd")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return errs.New(errs.FailedPrecondition, "make the run directory: %w", err)
		}
	}
	specs, err := d.specs()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, s := range specs {
		wanted[s.ID] = s.Block
	}
	left, err := loop.Sweep(ctx, d.cfg.State.ID(), func(volume string) bool { return wanted[volume] })
	for _, e := range left {
		d.logger.Warn("a block device without an attached disk was removed", "volume", e.Volume, "device", e.Device)
	}
	if err != nil {
		d.logger.Warn("cannot remove stale block devices", "error", err)
	}
	if d.cfg.DiskCacheBytes > 0 {
		if d.cache, err = d.openCache(); err != nil {
			// Disks work without the cache, and can fetch its content again.
			d.logger.Warn("there is no disk cache", "error", err)
		} else {
			defer d.cache.Close()
		}
	}
	d.mu.Lock()
	d.ctx = ctx
	for _, s := range specs {
		id, err := lsvd.ParseID(s.ID)
		if err != nil {
			continue // specs has checked it
		}
		x := newDisk(id, *s)
		d.disks[id] = x
		d.retries.Go(func() { d.reopen(ctx, x) })
	}
	d.mu.Unlock()
	close(d.ready)
	<-ctx.Done()
	return d.closeAll()
}

func (d *Daemon) openCache() (*lsvd.DiskCache, error) {
	dir, err := vfs.OpenDir(filepath.Join(d.cfg.State.Dir(), "cache"))
	if err != nil {
		return nil, err
	}
	return lsvd.OpenDiskCache(dir, d.cfg.DiskCacheBytes, d.logger)
}

func (d *Daemon) lock() (*os.File, error) {
	path := filepath.Join(d.cfg.State.Dir(), "daemon.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "lock the disk directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errs.New(errs.FailedPrecondition, "another disk daemon runs on %s", d.cfg.State.Dir()).
				WithHint("use it, or stop it with `r lsvd daemon --stop`")
		}
		return nil, errs.New(errs.Unavailable, "lock the disk directory: %w", err)
	}
	return f, nil
}

// closeAll closes every disk; the files that say what is attached stay.
func (d *Daemon) closeAll() error {
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	d.retries.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.CloseTimeout)
	defer cancel()
	var g errgroup.Group
	for _, x := range d.all() {
		g.Go(func() error {
			x.op.Lock()
			defer x.op.Unlock()
			if err := x.stop(ctx); err != nil {
				d.logger.Error("disk was not closed clean; the log keeps what the store lacks", "volume", x.spec.label(), "error", err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Request asks for a disk.
type Request struct {
	Spec
	Volume     string // name or ID, in place of Spec.ID and Name
	TakeOver   bool
	AcceptLoss bool
}

// Attach opens a disk and serves it. One that is attached already gets the
// further places to listen, and another key file. It returns when the disk can be used.
func (d *Daemon) Attach(ctx context.Context, r Request) (Info, error) {
	st, url, release, err := d.stores.use(ctx, r.Store)
	if err != nil {
		return Info{}, err
	}
	defer release()
	v, err := catalog.Find(ctx, st, r.Volume)
	if err != nil {
		return Info{}, err
	}
	r.Spec.Store, r.Spec.ID, r.Spec.Name = url, v.ID.String(), v.Name
	for i := range r.NBD {
		if l := &r.NBD[i]; l.Socket == "" && l.Address == "" {
			l.Socket = filepath.Join(d.cfg.RunDir, "nbd", v.Label()+".sock")
		}
	}
	d.mu.Lock()
	if d.ctx == nil || d.stopped || d.ctx.Err() != nil {
		d.mu.Unlock()
		return Info{}, errs.New(errs.Unavailable, "the disk daemon is stopping")
	}
	x, there := d.disks[v.ID]
	if !there {
		x = newDisk(v.ID, r.Spec)
		x.op.Lock() // no other goroutine has it yet
		d.disks[v.ID] = x
	}
	d.mu.Unlock()
	if there {
		x.op.Lock()
	}
	defer x.op.Unlock()
	if x.gone {
		return Info{}, errs.New(errs.Unavailable, "volume %s was being detached", v.Label()).WithHint("try again")
	}
	if there {
		if err := d.takeKeyFile(ctx, st, x, r.KeyFile); err != nil {
			return Info{}, err
		}
	}
	if x.running() {
		err := d.extend(ctx, x, r.Spec)
		return x.info(), err
	}
	// A disk that is being tried again gets this attempt's answer.
	if err := d.start(ctx, x, !there, r.TakeOver, r.AcceptLoss); err != nil {
		if there {
			x.set(Failed, err)
		} else {
			d.remove(x)
		}
		return Info{}, err
	}
	x.halt()
	return x.info(), nil
}

// extend adds frontends. The caller holds x.op.
func (d *Daemon) extend(ctx context.Context, x *disk, s Spec) error {
	if s.Block && !x.spec.Block {
		if err := x.attach(ctx, d); err != nil {
			return err
		}
		x.mu.Lock()
		x.spec.Block = true
		x.mu.Unlock()
		if err := d.saveSpec(x.id, x.spec); err != nil {
			return err
		}
	}
	for _, l := range s.NBD {
		if slices.Contains(x.spec.NBD, l) {
			continue
		}
		if err := x.listen(d, l); err != nil {
			return err
		}
		x.mu.Lock()
		x.spec.NBD = append(x.spec.NBD, l)
		x.mu.Unlock()
		if err := d.saveSpec(x.id, x.spec); err != nil {
			return err
		}
	}
	return nil
}

// remove forgets a disk. The caller holds x.op.
func (d *Daemon) remove(x *disk) {
	x.gone = true
	d.mu.Lock()
	delete(d.disks, x.id)
	d.mu.Unlock()
}

// Detach closes a disk and forgets it. It refuses while its block device is in
// use, or waits for a disk that is not open, unless forced: then its users get
// I/O errors. Detach opens a disk that is not open, unless forced: its log may have
// writes that the store lacks. It returns an error if the disk cannot send them before
// ctx ends; the disk is detached all the same, and the log keeps them.
func (d *Daemon) Detach(ctx context.Context, volume, store string, force bool) (Info, error) {
	x, err := d.find(volume, store)
	if err != nil {
		return Info{}, err
	}
	x.halt()
	x.op.Lock()
	defer x.op.Unlock()
	if x.gone {
		return Info{}, notAttached(volume)
	}
	i := x.info()
	if err := d.detachUnopened(ctx, x, force); err != nil {
		d.openLater(x)
		return i, err
	}
	var unsent error
	if !x.running() && !force {
		if _, unsent = d.open(ctx, x, false, false); errs.Is(unsent, errs.NotFound) {
			unsent = nil // the volume was deleted
		}
	}
	if err := x.release(ctx, force); err != nil {
		if e := (*errs.Error)(nil); errors.As(err, &e) && errs.HintOf(err) == "" {
			err = e.WithHint("unmount what is on it, and end the processes that have it open; --force detaches it all the same")
		}
		return i, err
	}
	if err := d.dropSpec(x.id); err != nil {
		return i, err
	}
	if err := x.stop(ctx); err != nil {
		unsent = err
	}
	d.remove(x)
	if unsent == nil {
		return i, nil
	}
	e := errs.New(errs.ClassOf(unsent), "volume %s is detached, but the store may lack some of its writes: %w", x.spec.label(), unsent)
	if isRefusal(unsent) && errs.HintOf(unsent) != "" {
		return i, e // the hint says what to do about the refusal
	}
	return i, e.WithHint("the log in %s keeps them; attach the volume here again when the store can be reached", d.cfg.State.LogDir(x.id))
}

// find returns an attached disk by name or ID; store, if not empty, must be
// its store.
func (d *Daemon) find(volume, store string) (*disk, error) {
	if store != "" {
		url, err := host.StoreURL(store)
		if err != nil {
			return nil, err
		}
		store = url
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var found []*disk
	for _, x := range d.disks {
		s := x.view()
		if (s.ID == volume || s.Name == volume) && (store == "" || s.Store == store) {
			found = append(found, x)
		}
	}
	switch len(found) {
	case 0:
		return nil, notAttached(volume)
	case 1:
		return found[0], nil
	}
	return nil, errs.New(errs.FailedPrecondition, "volumes named %s of several stores are attached", volume).WithHint("name the store, or use the ID")
}

func notAttached(volume string) error {
	return errs.New(errs.NotFound, "volume %s is not attached on this machine", volume).WithHint("`r lsvd list --attached` shows what is")
}

// Get returns an attached disk.
func (d *Daemon) Get(volume, store string) (Info, error) {
	x, err := d.find(volume, store)
	if err != nil {
		return Info{}, err
	}
	return x.info(), nil
}

func (d *Daemon) all() []*disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.disks))
}

// List returns all attached disks, by name.
func (d *Daemon) List() []Info {
	all := d.all()
	out := make([]Info, 0, len(all))
	for _, x := range all {
		out = append(out, x.info())
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Spec.label()+a.Spec.ID, b.Spec.label()+b.Spec.ID) })
	return out
}

// With calls f with an open disk. It does not keep the disk from being closed
// meanwhile: f then fails, which is Unavailable.
func (d *Daemon) With(volume, store string, f func(*host.Disk) error) error {
	x, err := d.find(volume, store)
	if err != nil {
		return err
	}
	dev, err := x.device()
	if err != nil {
		return err
	}
	if err = f(dev); errs.Is(err, errs.FailedPrecondition) {
		if now, _ := x.device(); now != dev {
			return errs.New(errs.Unavailable, "volume %s was closed meanwhile", volume)
		}
	}
	return err
}

// Resize makes an attached disk larger, and its block device.
func (d *Daemon) Resize(ctx context.Context, volume, store string, size int64) error {
	x, err := d.find(volume, store)
	if err != nil {
		return err
	}
	x.op.Lock()
	defer x.op.Unlock()
	return x.resize(ctx, size)
}

// BlockDevices are the devices that processes may use: they wait while no
// daemon runs, or fail. Those of disks that are not open yet are among them.
func (d *Daemon) BlockDevices() []string {
	var out []string
	for _, x := range d.all() {
		dev := x.blockDevice()
		if dev == "" {
			dev = d.leftDevice(x)
		}
		if dev != "" {
			out = append(out, x.spec.label()+" at "+dev)
		}
	}
	slices.Sort(out)
	return out
}

// LogSpace returns the figures of the space for logs; zero if it is not bounded.
func (d *Daemon) LogSpace() lsvd.LogSpaceStats {
	if d.space == nil {
		return lsvd.LogSpaceStats{}
	}
	return d.space.Stats()
}

// Memory returns the figures of the memory that disks share; zero if it is not bounded.
func (d *Daemon) Memory() lsvd.MemoryStats {
	if d.memory == nil {
		return lsvd.MemoryStats{}
	}
	return d.memory.Stats()
}

// Samples returns the figures of all disks, for package metrics.
func (d *Daemon) Samples() []metrics.Sample {
	list := d.List()
	names := map[string]int{}
	for _, i := range list {
		names[i.Spec.label()]++
	}
	var out []metrics.Sample
	for _, i := range list {
		label := i.Spec.label()
		if names[label] > 1 {
			label = i.Spec.ID // same name in two stores
		}
		out = append(out, metrics.Sample{Volume: label, Stats: i.Stats, Frontends: i.Counts, Store: i.StoreCounts, Up: i.State == Open})
	}
	return out
}
