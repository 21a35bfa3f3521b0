package runner

import (
	"context"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/node"
	"miren.dev/runtime/controllers/retention"
	ctlsandbox "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/trace"
	rpcserver "miren.dev/runtime/servers/rpc"
)

// keyWait is the pause before the server is asked again for the runner's key.
const keyWait = 2 * time.Second

// finishTime bounds how long the server may copy the last output of a sandbox.
const finishTime = 30 * time.Second

// Machine is what runs the sandboxes of a runner.
type Machine struct {
	Driver execution.Driver
	Files  execution.FileDriver // the same
	Images Images
	Host   func() (*runner.Host, error) // reads what the machine uses
	// Network is the private networks of apps; nil: there are none.
	Network Network
	// ImageBytes bounds the images that no sandbox and no snapshot of the machine uses; see retention.Copies.
	ImageBytes int64
	// Registrar registers the node; Run sets its store, name and logger.
	Registrar node.Registrar
	Stopped   time.Time // as of controllers/sandbox
	Logger    *slog.Logger
	Traces    *trace.Tracer // of the server's calls; nil: none
}

// Images is the image store of a machine.
type Images interface {
	retention.CopyStore
	// Has reports whether the machine has an image.
	Has(ctx context.Context, ref string) (bool, error)
	// Import stores an image, an OCI archive, which must be the one that ref names.
	Import(ctx context.Context, ref string, archive io.Reader) error
}

// Run is a runner: it runs the sandboxes that are placed on its node until ctx
// ends, and leaves them running.
func Run(ctx context.Context, c *Client, m Machine) error {
	err := run(ctx, c, m)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func run(ctx context.Context, c *Client, m Machine) error {
	sealer, err := c.sealer(ctx)
	if err != nil {
		return err
	}
	store := remote.New(c.rpc)
	m.Registrar.Store, m.Registrar.Instance, m.Registrar.Logger = store, c.Name, m.Logger
	for {
		_, err := m.Registrar.Register(ctx)
		if err == nil {
			break
		}
		if !errs.Is(err, errs.Unavailable) {
			return err
		}
		m.Logger.Warn("register this node", "error", err)
		if !pause(ctx, keyWait) {
			return nil
		}
	}
	copies := &retention.Copies{Store: store, Images: m.Images, MaxBytes: m.ImageBytes, Logger: m.Logger.With("component", "image retention")}
	driver := &fetcher{Driver: m.Driver, c: c, images: m.Images, use: copies.Use}
	informers := informer.New(informer.Config{Reader: store, Logger: m.Logger.With("component", "informers")})
	rt := kit.New(kit.Config{Informers: informers, Logger: m.Logger})
	reconciler := &ctlsandbox.Reconciler{
		Store: store, Driver: driver, Node: c.Node, Sealer: sealer, Stopped: m.Stopped, Logger: m.Logger.With("controller", "sandbox"),
		Kept: kept{c},
	}
	snapshots := &ctlsandbox.Snapshots{Sandboxes: reconciler, Logger: m.Logger.With("controller", "snapshot")}
	for _, ctl := range []kit.Controller{reconciler.Controller(), snapshots.Controller()} {
		if err := rt.Add(ctl); err != nil {
			return err
		}
	}
	srv, err := rpc.NewServer(rpc.ServerOptions{Logger: m.Logger.With("component", "rpc"), Traces: m.Traces})
	if err != nil {
		return err
	}
	rpcserver.RegisterNode(srv, ctlsandbox.LocalNode{Driver: driver, FileDriver: m.Files}, m.Host, m.connect)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.Registrar.Run(ctx) })
	g.Go(func() error { return informers.Run(ctx) })
	g.Go(func() error { return rt.Run(ctx) })
	g.Go(func() error { return c.Renew(ctx) })
	g.Go(func() error { return copies.Run(ctx) })
	if m.Network != nil {
		g.Go(func() error { return c.followApps(ctx, m.Network) })
	}
	g.Go(func() error {
		defer srv.Close()
		return c.Run(ctx, srv)
	})
	m.Logger.Info("runner runs", "server", c.Server, "node", string(c.Node), "name", c.Name)
	return g.Wait()
}

// connect connects to a sandbox of an app, for one elsewhere.
func (m *Machine) connect(ctx context.Context, sid id.Sandbox, port uint16) (sandboxes.Conn, error) {
	if m.Network == nil {
		return nil, errs.New(errs.Unavailable, "this machine has no private networks")
	}
	return m.Network.Connect(ctx, string(sid), port)
}

// kept has the server copy the last output of deleted sandboxes.
type kept struct{ c *Client }

// Finish implements ctlsandbox.Kept.
func (k kept) Finish(ctx context.Context, sid string) error {
	ctx, cancel := context.WithTimeout(ctx, finishTime)
	defer cancel()
	return k.c.gateway.Finish(ctx, &runner.SandboxRequest{Sandbox: id.Sandbox(sid)})
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// sealer asks for the key that opens the secrets of the runner's sandboxes. It is
// never on the machine's disk.
func (c *Client) sealer(ctx context.Context) (*schema.Sealer, error) {
	for {
		resp, err := c.gateway.Key(ctx)
		if err == nil {
			return schema.NewKeySealer(resp.Key)
		}
		if ctx.Err() != nil || !errs.Is(err, errs.Unavailable) {
			return nil, err
		}
		c.logger.Warn("the server does not answer", "server", c.Server, "error", err)
		if !pause(ctx, keyWait) {
			return nil, errs.New(errs.Canceled, "wait for the server: %w", ctx.Err())
		}
	}
}

// fetcher is the driver of a runner: it fetches images that the machine does not
// have from the server, and says no address, which nobody else can reach.
type fetcher struct {
	execution.Driver
	c       *Client
	images  Images
	use     func(ref string)   // says that an image must stay, before it is looked for
	running singleflight.Group // by reference
}

// Ensure implements execution.Driver.
func (f *fetcher) Ensure(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	if s.Image != "" {
		f.use(s.Image)
	}
	if s.Restore == "" && s.Image != "" {
		if _, err, _ := f.running.Do(s.Image, func() (any, error) { return nil, f.fetch(ctx, s.Image) }); err != nil {
			return execution.Instance{}, err
		}
	}
	inst, err := f.Driver.Ensure(ctx, s)
	inst.Address = ""
	return inst, err
}

func (f *fetcher) fetch(ctx context.Context, ref string) error {
	if have, err := f.images.Has(ctx, ref); have || err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	st, err := f.c.gateway.Image(ctx, &runner.ImageRequest{Image: ref})
	if err == nil {
		err = f.images.Import(ctx, ref, st.Reader())
	}
	if err != nil {
		return errs.Wrap(err, "fetch image %s from the server", ref)
	}
	f.c.logger.Info("image fetched from the server", "image", ref, "took", time.Since(began))
	return nil
}

// LogIDs lists the sandboxes whose logs the driver keeps.
func (f *fetcher) LogIDs(ctx context.Context) ([]string, error) {
	if l, ok := f.Driver.(interface {
		LogIDs(ctx context.Context) ([]string, error)
	}); ok {
		return l.LogIDs(ctx)
	}
	return nil, nil
}
