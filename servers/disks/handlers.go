package disks

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"time"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/lsvd/frontend/fuse"
	"miren.dev/runtime/lsvd/metrics"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/version"
)

// server implements the handlers of api/lsvd.
type server struct {
	cfg     Config
	engine  *daemon.Daemon
	started time.Time
	metrics []string
	stop    context.CancelFunc
}

var _ api.Disks = (*server)(nil)

// detachTimeout is how long a detach waits for the store unless the request
// sets a timeout.
const detachTimeout = time.Minute

// rotateTimeout is how long the rotation of a key waits for the store.
const rotateTimeout = time.Minute

func (s *server) Status(context.Context) (*api.StatusResponse, error) {
	r := &api.StatusResponse{Version: version.Get().Version, PID: int64(os.Getpid()), StartedAt: s.started, StateDir: s.cfg.StateDir,
		Metrics: slices.Sorted(slices.Values(s.metrics)), Disks: int64(len(s.engine.List()))}
	if space := s.engine.LogSpace(); space.Limit > 0 {
		r.LogSpaceBytes, r.LogSpaceUsedBytes = &space.Limit, &space.Used
	}
	if memory := s.engine.Memory(); memory.Limit > 0 {
		r.MemoryBytes, r.MemoryUsedBytes = &memory.Limit, &memory.Used
	}
	return r, nil
}

func (s *server) List(context.Context) (*api.ListResponse, error) {
	r := &api.ListResponse{}
	for _, i := range s.engine.List() {
		r.Disks = append(r.Disks, asDisk(i))
	}
	return r, nil
}

func (s *server) Get(_ context.Context, req *api.VolumeRequest) (*api.DiskResponse, error) {
	i, err := s.engine.Get(req.Volume, req.Store)
	if err != nil {
		return nil, err
	}
	return &api.DiskResponse{Disk: asDisk(i)}, nil
}

func (s *server) Attach(ctx context.Context, req *api.AttachRequest) (*api.DiskResponse, error) {
	r := daemon.Request{Volume: req.Volume, TakeOver: req.TakeOver, AcceptLoss: req.AcceptLoss}
	r.Spec = daemon.Spec{Store: req.Store, KeyFile: req.KeyFile, ReadOnly: req.ReadOnly, CacheBytes: opt.Value(req.CacheBytes),
		MaxUnsent: opt.Value(req.MaxUnsentBytes), RemoteFlush: req.RemoteFlush}
	r.Block = req.Block
	for _, l := range req.Nbd {
		r.NBD = append(r.NBD, daemon.Listen{Socket: l.Socket, Address: l.Address, TLS: l.TLS, Clients: l.Clients, Plain: l.Plain})
	}
	i, err := s.engine.Attach(ctx, r)
	if err != nil {
		return nil, err
	}
	return &api.DiskResponse{Disk: asDisk(i)}, nil
}

func (s *server) Detach(ctx context.Context, req *api.DetachRequest) (*api.DiskResponse, error) {
	// A half-done detach is of no use to any caller, so it continues after the
	// caller has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(opt.Value(req.Timeout), detachTimeout))
	defer cancel()
	i, err := s.engine.Detach(ctx, req.Volume, req.Store, req.Force)
	if err != nil {
		return nil, err
	}
	return &api.DiskResponse{Disk: asDisk(i)}, nil
}

func (s *server) Snapshot(ctx context.Context, req *api.SnapshotRequest) error {
	return s.engine.With(req.Volume, req.Store, func(d *host.Disk) error { return d.Snapshot(ctx, req.Snapshot) })
}

func (s *server) Resize(ctx context.Context, req *api.ResizeRequest) error {
	return s.engine.Resize(ctx, req.Volume, req.Store, req.SizeBytes)
}

func (s *server) RotateKey(ctx context.Context, req *api.RotateKeyRequest) error {
	// Half of a rotation is of no use to any caller, so it continues after the caller has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rotateTimeout)
	defer cancel()
	return s.engine.RotateKey(ctx, req.Volume, req.Store, req.KeyFile, req.NewKeyFile)
}

func (s *server) Collect(ctx context.Context, req *api.CollectRequest) (*api.CollectResponse, error) {
	n, err := s.engine.Collect(ctx, req.Volume, req.Store, req.Ratio)
	if err != nil {
		return nil, err
	}
	return &api.CollectResponse{Segments: int64(n)}, nil
}

func (s *server) Stop(_ context.Context, req *api.StopRequest) error {
	if devices := s.engine.BlockDevices(); len(devices) > 0 && !req.Leave {
		return errs.New(errs.FailedPrecondition, "volumes are attached as block devices: %s", strings.Join(devices, ", ")).
			WithHint("`r lsvd detach --all` detaches them; `r lsvd daemon --restart` replaces the daemon without disturbing them")
	}
	s.stop()
	return nil
}

func asDisk(i daemon.Info) api.Disk {
	d := api.Disk{ID: i.Spec.ID, Name: i.Spec.Name, Store: i.Spec.Store, State: api.DiskState(i.State), ReadOnly: i.Spec.ReadOnly}
	if i.Err != nil {
		d.Message, d.Hint = i.Err.Error(), errs.HintOf(i.Err)
	}
	if i.Size == 0 {
		return d // the volume is not open
	}
	d.SizeBytes, d.OpenedAt = &i.Size, &i.Since
	if i.Recovery.LostLog || i.Recovery.LostAfter {
		last := int64(i.Recovery.Last)
		d.LostAfter, d.Damaged = &last, &i.Recovery.Damaged
	}
	for _, f := range i.Frontends {
		x := api.Frontend{Kind: f.Kind, Address: f.Address}
		if c := i.Counts[f.Kind]; c != nil {
			x.InFlight = c.Busy()
		}
		d.Frontends = append(d.Frontends, x)
	}
	d.Figures = figures(i)
	return d
}

func figures(i daemon.Info) *api.DiskFigures {
	const block = 4096
	s := i.Stats
	f := &api.DiskFigures{UnsentBytes: s.UnsentBytes, Lag: s.Lag, WrittenBytes: s.Written, StoredBytes: s.Stored, StoredGcBytes: s.StoredGC,
		WriteAmplification: metrics.Amplification(s), LiveBytes: s.LiveBlocks * block, SegmentBytes: s.StoredBlocks * block, Segments: int64(s.Segments),
		LogBytes: s.LogBytes, CacheHits: s.CacheHits, CacheMisses: s.CacheMisses, CacheBytes: s.CacheBytes, StoreRetries: s.StoreFailures,
		Queue: int64(s.Queue), StoredMapBytes: s.StoredMap, MapBytes: s.MapBytes, DiskCacheHits: s.CacheDiskHits}
	last, durable := int64(s.Last), int64(s.Durable)
	f.Last, f.Durable = &last, &durable
	for _, c := range s.Unsent {
		f.Unsent = append(f.Unsent, api.UnsentCut{Last: int64(c.Last), Bytes: c.Bytes})
	}
	// Writes wait above the limit, except those under way. Only of a block device it is
	// known how many these are.
	if !slices.ContainsFunc(i.Frontends, func(f daemon.Frontend) bool { return f.Kind != daemon.KindBlock }) {
		most := max(s.UnsentLimit, s.UnsentBytes) + fuse.MaxUnderWay
		f.UnsentMostBytes = &most
	}
	for kind, c := range i.Counts {
		for _, op := range metrics.Ops() {
			x := c.Figures(op)
			if x.Latency.Count == 0 {
				continue
			}
			f.Ops = append(f.Ops, api.OpFigures{Frontend: kind, Op: op.String(), Count: int64(x.Latency.Count), Errors: x.Errors, Bytes: x.Bytes,
				P50: x.Latency.Quantile(0.5), P99: x.Latency.Quantile(0.99), Longest: x.Latency.Max})
		}
	}
	slices.SortStableFunc(f.Ops, func(a, b api.OpFigures) int { return cmp.Compare(a.Frontend, b.Frontend) })
	return f
}
