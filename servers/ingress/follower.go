package ingress

import (
	"context"
	"encoding/hex"
	"net"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// follower keeps the table in step with the store. One informer set carries its
// kinds, so the table is always the state at one revision. With a watch per
// kind, the table could show the switch of an app's version before the new
// sandboxes are ready.
type follower struct {
	in        *Ingress
	informers *informer.Set // nil: there is no store
	apps      informer.Informer[app.App, *app.App]
	routes    informer.Informer[app.Route, *app.Route]
	tcp       informer.Informer[app.TCPRoute, *app.TCPRoute]
	sandboxes informer.Informer[sandbox.Sandbox, *sandbox.Sandbox]
	pools     informer.Informer[sandbox.SandboxPool, *sandbox.SandboxPool]
	previews  informer.Informer[sandbox.Preview, *sandbox.Preview]

	// Used by the goroutine of the informers only.
	changed bool // an entity changed since the table was made
	synced  bool // the table was made from a listing by this process

	mu    sync.Mutex
	at    schema.Token // the table includes every change up to this position
	saved State        // state passed to the goroutine that writes the file
	dirty chan struct{}
}

// Indexes of the informers.
const (
	serving   = "serving" // the sandboxes that take requests of apps
	bySandbox = "sandbox" // previews by sandbox
)

func newFollower(in *Ingress) *follower {
	f := &follower{in: in, dirty: make(chan struct{}, 1)}
	if in.cfg.Reader == nil {
		return f
	}
	f.informers = informer.New(informer.Config{Reader: in.cfg.Reader, Logger: in.cfg.Logger})
	f.apps, f.routes, f.sandboxes = informer.Of[app.App](f.informers), informer.Of[app.Route](f.informers), informer.Of[sandbox.Sandbox](f.informers)
	f.tcp = informer.Of[app.TCPRoute](f.informers)
	f.sandboxes.Trim(trim)
	f.sandboxes.AddIndex(serving, func(sb *sandbox.Sandbox) []string {
		if _, ok := f.sandboxOf(sb); ok {
			return []string{""}
		}
		return nil
	})
	f.previews = informer.Of[sandbox.Preview](f.informers)
	f.previews.AddIndex(bySandbox, func(p *sandbox.Preview) []string { return []string{string(p.Spec.Sandbox)} })
	f.pools = informer.Of[sandbox.SandboxPool](f.informers)
	f.pools.Trim(trimPool)
	watch(f, f.pools, serviceOf)
	watch(f, f.previews, previewOf)
	watch(f, f.sandboxes, f.guestOf)
	watch(f, f.apps, appOf)
	watch(f, f.routes, routeOf)
	watch(f, f.tcp, tcpRouteOf)
	f.routes.Handle(in.passwords.changed)
	informer.Of[certificate.Certificate](f.informers).Handle(func(informer.Change[*certificate.Certificate]) { in.keys.refresh() })
	informer.Of[certificate.CertificateOrder](f.informers).Handle(in.challenges.changed)
	watch(f, f.sandboxes, f.sandboxOf)
	f.informers.OnAdvance(f.advance)
	if reg := in.cfg.Registerer; reg != nil {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "runtime_ingress_store_errors_total", Help: "Times that the store could not be followed."},
			func() float64 { return float64(f.informers.Status().Interruptions) }))
	}
	return f
}

// watch records changes to the fields of a kind that the table uses.
func watch[T, E any, P interface {
	*E
	schema.Object
}](f *follower, i informer.Informer[E, P], of func(P) (T, bool)) {
	i.Handle(func(c informer.Change[P]) {
		var before, now T
		var was, is bool
		if c.Old != nil {
			before, was = of(c.Old)
		}
		if c.New != nil {
			now, is = of(c.New)
		}
		f.changed = f.changed || was != is || !reflect.DeepEqual(before, now)
	})
}

// advance installs a new table if one is needed, and then records the position.
func (f *follower) advance(at schema.Token) {
	if !f.synced { // no change tells of what was deleted between the first questions and the listing
		f.in.keys.refresh()
		f.in.passwords.refresh()
	}
	if f.changed || !f.synced {
		f.publish(at)
		f.changed, f.synced = false, true
	}
	f.setPosition(at)
}

// load installs the table that the last process saved, if there is one.
func (f *follower) load() {
	path := f.in.cfg.TableFile
	if path == "" {
		return
	}
	s, err := loadState(path)
	switch {
	case errs.Is(err, errs.NotFound):
		return
	case err != nil:
		f.in.cfg.Logger.Error("the saved table cannot be used, starting without", "error", err)
		return
	case s.Node != f.in.cfg.Node: // or an earlier version wrote it, with the addresses of all nodes
		f.in.cfg.Logger.Warn("the saved table is of another node; its addresses are not used", "node", string(s.Node))
		s.Sandboxes = nil
		for i := range s.Guests {
			s.Guests[i].Address = ""
		}
	}
	f.in.install(s)
	f.setPosition(s.Token)
}

func (f *follower) position() schema.Token {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

func (f *follower) setPosition(t schema.Token) {
	f.mu.Lock()
	f.at = t
	f.mu.Unlock()
	f.in.metrics.revision.Set(float64(t.Revision))
}

// run follows the store until ctx ends.
func (f *follower) run(ctx context.Context) error {
	var writer sync.WaitGroup
	writer.Go(func() { f.write(ctx) })
	defer writer.Wait()
	if f.informers == nil {
		<-ctx.Done()
		return nil
	}
	return f.informers.Run(ctx)
}

// publish installs a table made from the entities.
func (f *follower) publish(at schema.Token) {
	s := &State{
		Token: at, Node: f.in.cfg.Node, Apps: parts(f.apps.List(), appOf), Routes: parts(f.routes.List(), routeOf), TCP: parts(f.tcp.List(), tcpRouteOf),
		Sandboxes: parts(f.sandboxes.ByIndex(serving, ""), f.sandboxOf), Previews: parts(f.previews.List(), previewOf), Services: parts(f.pools.List(), serviceOf),
	}
	seen := map[schema.ID]bool{}
	for _, p := range s.Previews {
		if sb := f.sandboxes.Get(p.Sandbox); sb != nil && !seen[p.Sandbox] {
			seen[p.Sandbox] = true
			g, _ := f.guestOf(sb)
			s.Guests = append(s.Guests, g)
		}
	}
	f.in.install(s)
	f.mu.Lock()
	f.saved = *s
	f.mu.Unlock()
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// parts returns the fields of the entities that the table uses.
func parts[P, T any](list []P, of func(P) (T, bool)) []T {
	out := make([]T, 0, len(list))
	for _, o := range list {
		if p, ok := of(o); ok {
			out = append(out, p)
		}
	}
	return out
}

// Each function returns the fields of an entity that the table uses, and
// whether the table needs the entity.

func appOf(a *app.App) (App, bool) {
	o := App{ID: a.ID, Name: a.Name, Deploying: a.Status.ActiveDeployment != "", Away: away(a), Created: a.CreateRevision}
	for _, t := range a.Status.Shares() {
		o.Versions = append(o.Versions, Share{Version: schema.ID(t.Version), Weight: t.Weight, Preview: t.Preview})
	}
	return o, true
}

func routeOf(r *app.Route) (Route, bool) {
	return Route{ID: r.ID, Host: r.Spec.Host, Path: r.Spec.Path, App: schema.ID(r.Spec.App), Service: r.Spec.Service, Preview: r.Spec.Preview, Settings: settingsOf(r),
		Project: r.Project, Created: r.CreateRevision}, true
}

func (f *follower) sandboxOf(sb *sandbox.Sandbox) (Sandbox, bool) {
	port := httpPort(sb.Spec.Template.Ports)
	if sb.Spec.App == "" || sb.Status.Phase != sandbox.SandboxPhaseRunning || !sb.Status.Ready ||
		sb.Spec.Desired != sandbox.DesiredStateRunning || sb.Spec.DrainingAt != nil || sb.Status.Address == "" && !sb.Spec.Runner || port == 0 {
		return Sandbox{}, false
	}
	o := Sandbox{ID: sb.ID, App: schema.ID(sb.Spec.App), Version: schema.ID(sb.Spec.AppVersion), Service: sb.Spec.Service}
	o.Remote = sb.Spec.Runner || sb.Spec.Node != f.in.cfg.Node
	switch {
	case sb.Spec.Runner && f.in.cfg.DialService != nil:
		o.Port = port
	case o.Remote:
		return o, true
	default:
		o.Address = net.JoinHostPort(sb.Status.Address, strconv.FormatInt(port, 10))
	}
	o.H2C = speaksH2C(sb.Spec.Template.Ports, port)
	return o, true
}

// serviceOf selects the services that take requests. A version has their pools as long as it serves.
func serviceOf(p *sandbox.SandboxPool) (Service, bool) {
	return Service{schema.ID(p.Spec.App), p.Spec.Service, schema.ID(p.Spec.AppVersion)}, p.Spec.App != "" && httpPort(p.Spec.Template.Ports) != 0
}

func previewOf(p *sandbox.Preview) (Preview, bool) {
	o := Preview{ID: p.ID, Sandbox: schema.ID(p.Spec.Sandbox), Port: p.Spec.Port, Public: p.Spec.Public, Key: hex.EncodeToString(p.Spec.Key)}
	if at := p.Spec.ExpiresAt; at != nil {
		o.Expires = at.UnixMilli()
	}
	return o, true
}

// guestOf selects the sandboxes that have previews. Those of other nodes are reached through the
// server only.
func (f *follower) guestOf(sb *sandbox.Sandbox) (Guest, bool) {
	if len(f.previews.ByIndex(bySandbox, string(sb.ID))) == 0 {
		return Guest{}, false
	}
	g := Guest{ID: sb.ID, Ended: sb.Status.Phase.Ended() || sb.Spec.Desired == sandbox.DesiredStateStopped}
	if sb.Status.Phase == sandbox.SandboxPhaseRunning && sb.Spec.Desired == sandbox.DesiredStateRunning {
		g.Running = true
		if g.Remote = sb.Spec.Node != f.in.cfg.Node; !g.Remote {
			g.Address = sb.Status.Address
		}
	}
	return g, true
}

// trim removes the fields of a sandbox that the table does not use: most of its
// memory, and its secrets.
func trim(sb *sandbox.Sandbox) {
	sb.Labels = nil
	sb.Spec.Template = sandbox.SandboxTemplate{Ports: sb.Spec.Template.Ports}
	sb.Status = sandbox.SandboxStatus{Phase: sb.Status.Phase, Ready: sb.Status.Ready, Address: sb.Status.Address}
}

// trimPool removes the fields of a pool that the table does not use.
func trimPool(p *sandbox.SandboxPool) {
	p.Labels = nil
	p.Spec = sandbox.SandboxPoolSpec{App: p.Spec.App, AppVersion: p.Spec.AppVersion, Service: p.Spec.Service,
		Template: sandbox.SandboxTemplate{Ports: p.Spec.Template.Ports}}
	p.Status = sandbox.SandboxPoolStatus{}
}

// httpPort returns the port named http, or else the first port.
func httpPort(ports []sandbox.Port) int64 {
	for _, p := range ports {
		if p.Name == "http" {
			return p.Number
		}
	}
	if len(ports) > 0 {
		return ports[0].Number
	}
	return 0
}

// saveEvery is the shortest time between two writes of the table file.
const saveEvery = 200 * time.Millisecond

// write keeps the table file up to date until ctx ends, and then writes it once
// more.
func (f *follower) write(ctx context.Context) {
	for {
		select {
		case <-f.dirty:
			f.save()
		case <-ctx.Done():
			select {
			case <-f.dirty:
				f.save()
			default:
			}
			return
		}
		select {
		case <-time.After(saveEvery):
		case <-ctx.Done():
		}
	}
}

func (f *follower) save() {
	if f.in.cfg.TableFile == "" || f.in.draining.Load() { // the file is the successor's then
		return
	}
	f.mu.Lock()
	s := f.saved
	f.mu.Unlock()
	if s.Token == (schema.Token{}) {
		return // this process has made no table
	}
	if err := saveState(f.in.cfg.TableFile, &s); err != nil {
		f.in.cfg.Logger.Error("the table cannot be saved", "error", err)
	}
}

// waitFor waits until the table includes every change up to revision, and
// returns the table's position, with ctx's error if ctx ends first.
func (f *follower) waitFor(ctx context.Context, revision schema.Revision) (schema.Token, error) {
	if f.informers == nil {
		<-ctx.Done()
		return f.position(), ctx.Err()
	}
	if _, err := f.informers.WaitRevision(ctx, revision); err != nil {
		return f.position(), err
	}
	return f.position(), nil
}

// away reports whether the server cannot be reached.
func (f *follower) away() bool {
	_, reason := f.status()
	return reason != ""
}

// status returns whether this process has listed the store, and why it is not
// following the store now (nil: it is).
func (f *follower) status() (synced bool, reason string) {
	if f.informers == nil {
		return false, ""
	}
	st := f.informers.Status()
	if st.Err != nil {
		reason = st.Err.Error()
	}
	return st.Synced, reason
}
