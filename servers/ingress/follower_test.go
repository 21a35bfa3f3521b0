package ingress

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	admin "miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// control is a control plane with one app in a real store.
type control struct {
	*testing.T
	store   *pgstore.Store
	project schema.ID
	app     *app.App
	number  int64
}

func newControl(t *testing.T) *control {
	t.Helper()
	c := &control{T: t, store: pgtest.Store(t, api.Kinds()...)}
	p := core.ProjectKind.New().(*core.Project)
	p.Name = "default"
	c.create(p)
	c.project = p.ID
	c.app = app.AppKind.New().(*app.App)
	c.app.Name, c.app.Project = "shop", p.ID
	c.create(c.app)
	return c
}

func (c *control) create(o schema.Object) {
	c.Helper()
	if err := entity.Create(c.Context(), c.store, o); err != nil {
		c.Fatal(err)
	}
}

func (c *control) version() id.AppVersion {
	c.Helper()
	c.number++
	v := app.AppVersionKind.New().(*app.AppVersion)
	v.Project, v.Spec.App, v.Spec.Number, v.Spec.Image = c.project, c.app.GetID(), c.number, "img@sha256:0"
	v.Spec.Services = []app.Service{{Name: "web"}}
	v.Spec.Services[0].SetDefaults()
	c.create(v)
	c.pool(v.GetID(), "web", sandbox.Port{Name: "http", Number: 80})
	return v.GetID()
}

func (c *control) pool(v id.AppVersion, service string, ports ...sandbox.Port) {
	c.Helper()
	p := sandbox.SandboxPoolKind.New().(*sandbox.SandboxPool)
	p.Project, p.Spec.App, p.Spec.AppVersion, p.Spec.Service = c.project, c.app.GetID(), v, service
	p.Spec.Template.Image, p.Spec.Template.Ports = "img@sha256:0", ports
	c.create(p)
}

// sandbox creates one that runs at url.
func (c *control) sandbox(v id.AppVersion, url string, ready bool) *sandbox.Sandbox {
	c.Helper()
	host, port, _ := strings.Cut(strings.TrimPrefix(url, "http://"), ":")
	s := sandbox.SandboxKind.New().(*sandbox.Sandbox)
	s.Project, s.Spec.App, s.Spec.AppVersion, s.Spec.Service = c.project, c.app.GetID(), v, "web"
	s.Spec.Template.Image = "img@sha256:0"
	var number int64
	fmt.Sscan(port, &number)
	s.Spec.Template.Ports = []sandbox.Port{{Name: "metrics", Number: 1}, {Name: "http", Number: number}}
	s.Status.Phase, s.Status.Ready, s.Status.Address = sandbox.SandboxPhaseRunning, ready, host
	c.create(s)
	return s
}

func (c *control) ready(s *sandbox.Sandbox, ready bool) {
	c.Helper()
	if _, err := entity.ModifyStatus(c.Context(), c.store, s.GetID(), func(s *sandbox.Sandbox) error {
		s.Status.Ready = ready
		return nil
	}); err != nil {
		c.Fatal(err)
	}
}

func (c *control) activate(v id.AppVersion) schema.Revision {
	c.Helper()
	a, err := entity.ModifyStatus(c.Context(), c.store, c.app.GetID(), func(a *app.App) error {
		a.Status.Activate(v)
		return nil
	})
	if err != nil {
		c.Fatal(err)
	}
	return a.Revision
}

func (c *control) route(host, path, service string) *app.Route {
	c.Helper()
	r := app.RouteKind.New().(*app.Route)
	r.Project, r.Spec.Host, r.Spec.Path, r.Spec.Key, r.Spec.App, r.Spec.Service = c.project, host, path, host+path, c.app.GetID(), service
	c.create(r)
	return r
}

// link is the connection to the store; a test can cut it.
type link struct {
	entity.Reader
	mu  sync.Mutex
	cut context.Context
	end context.CancelFunc
}

func newLink(r entity.Reader) *link {
	l := &link{Reader: r}
	l.restore()
	return l
}

func (l *link) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.end = context.WithCancel(context.Background())
}

func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

func (l *link) state() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

var errCut = errs.New(errs.Unavailable, "the link is cut")

func (l *link) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if l.state().Err() != nil {
		return entity.Page{}, errCut
	}
	return l.Reader.List(ctx, q)
}

func (l *link) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	cut := l.state()
	if cut.Err() != nil {
		return nil, errCut
	}
	w, err := l.Reader.Watch(ctx, q)
	return &cutWatch{w, cut}, err
}

type cutWatch struct {
	entity.Watch
	cut context.Context
}

func (w *cutWatch) Next(ctx context.Context) ([]entity.Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.cut, cancel)()
	ev, err := w.Watch.Next(ctx)
	if err != nil && w.cut.Err() != nil {
		return ev, errCut
	}
	return ev, err
}

func TestFollowsTheStore(t *testing.T) {
	c := newControl(t)
	up1, up2 := upstream(t, says("one")), upstream(t, says("two"))
	v1 := c.version()
	c.sandbox(v1, up1.URL, true)
	c.activate(v1)
	dir := t.TempDir()
	sock := filepath.Join(dir, "admin.sock")
	in := start(t, Config{Reader: c.store, AdminSocket: sock, TableFile: filepath.Join(dir, "table"), HoldTimeout: wait.Limit})
	cl := client(t)
	adm := admin.Client{Socket: sock}
	ctx, cancel := context.WithTimeout(t.Context(), 2*wait.Limit)
	defer cancel()
	wait.For(t, "the store is listed", func() bool { s, err := adm.Status(ctx); return err == nil && s.Synced })
	if code, body := get(t, cl, in.url, testHost); code != 200 || body != "one" {
		t.Fatalf("%d %s", code, body)
	}

	// A switch.
	v2 := c.version()
	sb := c.sandbox(v2, up2.URL, false)
	c.ready(sb, true)
	rev := c.activate(v2)
	if err := adm.Synced(ctx, rev); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, cl, in.url, testHost); code != 200 || body != "two" {
		t.Errorf("%d %s after the switch", code, body)
	}
	if n, err := adm.Inflight(ctx, schema.ID(v1)); err != nil || n.Total != 0 || len(n.Sandboxes) != 1 || n.Table.Revision < rev {
		t.Errorf("%+v, %v", n, err)
	}

	// Routes.
	if code, _ := get(t, cl, in.url, "www.example.com"); code != 404 {
		t.Errorf("%d without a route", code)
	}
	r := c.route("www.example.com", "/x", "web")
	if err := adm.Synced(ctx, r.Revision); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, cl, in.url+"/x/y", "www.example.com"); code != 200 || body != "two" {
		t.Errorf("%d %s", code, body)
	}
	if s, err := adm.Status(ctx); err != nil || len(s.Routes) != 2 || s.Routes[0].Host != "www.example.com" || s.Routes[0].Ready != 1 || s.Routes[0].Version != schema.ID(v2) {
		t.Errorf("%+v, %v", s, err)
	}
	if err := entity.Delete(ctx, c.store, r); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the route is gone", func() bool { code, _ := get(t, cl, in.url+"/x", "www.example.com"); return code == 404 })

	// A service that the version does not have, and one without a port.
	c.pool(v2, "worker")
	for _, service := range []string{"api", "worker"} {
		r := c.route(service+".example.com", "/", service)
		if err := adm.Synced(ctx, r.Revision); err != nil {
			t.Fatal(err)
		}
		if code, body := get(t, cl, in.url, service+".example.com"); code != 404 || !strings.Contains(body, "has no service "+strconv.Quote(service)) {
			t.Errorf("%d %s", code, body)
		}
		if err := entity.Delete(ctx, c.store, r); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the route is gone", func() bool { s, err := adm.Status(ctx); return err == nil && len(s.Routes) == 1 })
	}

	// A sandbox that must stop takes no more requests; they wait.
	if _, err := entity.ModifySpec(ctx, c.store, sb.GetID(), func(s *sandbox.Sandbox) error {
		s.Spec.Desired = sandbox.DesiredStateStopped
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "no sandbox is left", func() bool { s, err := adm.Status(ctx); return err == nil && s.Routes[0].Ready == 0 })
	var wg sync.WaitGroup
	wg.Go(func() {
		if code, body := get(t, cl, in.url, testHost); code != 200 || body != "one" {
			t.Errorf("held: %d %s", code, body)
		}
	})
	wait.For(t, "the request waits", func() bool { s, _ := adm.Status(ctx); return s.Held == 1 })
	c.sandbox(v2, up1.URL, true)
	wg.Wait()

	// A change that no table uses moves the position, not the table.
	before := in.table.Load()
	p := core.ProjectKind.New().(*core.Project)
	p.Name = "other"
	c.create(p)
	if err := adm.Synced(ctx, p.Revision); err != nil {
		t.Fatal(err)
	}
	if in.table.Load() != before {
		t.Error("the table was replaced for nothing")
	}
	short, cancelShort := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelShort()
	if err := adm.Synced(short, p.Revision+1000); err == nil {
		t.Error("synced with the future")
	}
}

func TestServesWithoutTheStore(t *testing.T) {
	c := newControl(t)
	up := upstream(t, says("here"))
	v := c.version()
	c.sandbox(v, up.URL, true)
	c.activate(v)
	l := newLink(c.store)
	dir := t.TempDir()
	cfg := Config{Reader: l, TableFile: filepath.Join(dir, "table"), AdminSocket: filepath.Join(dir, "a.sock"), Logger: quiet}
	in := start(t, cfg)
	cl := client(t)
	wait.For(t, "it serves", func() bool { return in.status().Synced })
	l.sever()
	wait.For(t, "it notices", func() bool { return in.status().Error != "" })
	for range 20 {
		if code, body := get(t, cl, in.url, testHost); code != 200 || body != "here" {
			t.Fatalf("%d %s without the store", code, body)
		}
	}
	if s := in.status(); s.Table.Revision == 0 || len(s.Routes) != 1 {
		t.Errorf("%+v", s)
	}
	in.stop()

	// A new process, still without the store.
	in = start(t, cfg)
	if code, body := get(t, cl, in.url, testHost); code != 200 || body != "here" {
		t.Fatalf("%d %s from the table on disk", code, body)
	}
	if s := in.status(); s.Synced {
		t.Errorf("%+v", s)
	}

	// Meanwhile another version became active.
	up2 := upstream(t, says("new"))
	v2 := c.version()
	c.sandbox(v2, up2.URL, true)
	rev := c.activate(v2)
	l.restore()
	ctx, cancel := context.WithTimeout(t.Context(), 2*wait.Limit)
	defer cancel()
	if err := (admin.Client{Socket: cfg.AdminSocket}).Synced(ctx, rev); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, cl, in.url, testHost); code != 200 || body != "new" {
		t.Errorf("%d %s after the store came back", code, body)
	}

	// After a short break the table catches up and is unchanged.
	l.sever()
	up3 := upstream(t, says("newest"))
	v3 := c.version()
	c.sandbox(v3, up3.URL, true)
	rev = c.activate(v3)
	l.restore()
	if err := (admin.Client{Socket: cfg.AdminSocket}).Synced(ctx, rev); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, cl, in.url, testHost); code != 200 || body != "newest" {
		t.Errorf("%d %s", code, body)
	}
	// A new epoch forces a new list.
	if err := c.store.NewEpoch(ctx); err != nil {
		t.Fatal(err)
	}
	r := c.route("*", "/", "web")
	if err := (admin.Client{Socket: cfg.AdminSocket}).Synced(ctx, r.Revision); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, cl, in.url, "any"); code != 200 || body != "newest" {
		t.Errorf("%d %s", code, body)
	}
}

func TestCorruptTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	if err := saveState(path, oneApp("10.1.1.1:1")); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	if err := os.WriteFile(path, b[:len(b)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var log bytes.Buffer
	in := start(t, Config{TableFile: path, Logger: slog.New(slog.NewTextHandler(&lockedWriter{mu: &mu, w: &log}, nil))})
	if code, _ := get(t, client(t), in.url, testHost); code != 404 {
		t.Errorf("%d", code)
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "checksum") {
		t.Errorf("log: %s", log.String())
	}
}

// TestTakeover: a second process takes over the address and the admin socket
// while the first drains, and no request fails.
func TestTakeover(t *testing.T) {
	up := upstream(t, says("hello"))
	dir := t.TempDir()
	table := filepath.Join(dir, "table")
	if err := saveState(table, oneApp(up.URL)); err != nil {
		t.Fatal(err)
	}
	cfg := Config{TableFile: table, AdminSocket: filepath.Join(dir, "a.sock"), HTTPSAddrs: []string{"127.0.0.1:0"}}
	first := start(t, cfg)
	cfg.Addrs = []string{first.addr}
	cfg.HTTPSAddrs = []string{first.secure[0].Addr().String()}
	if _, _, err := listen(t.Context(), Config{Addrs: cfg.Addrs}, nil); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a stranger could share the address: %v", err)
	}
	var served, failed atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			cl := client(t)
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := cl.Do(request(t, "GET", first.url, testHost))
				if err != nil {
					failed.Add(1)
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					failed.Add(1)
				}
				served.Add(1)
			}
		})
	}
	wait.For(t, "requests flow", func() bool { return served.Load() > 100 })
	cfg.TakeOver = cfg.AdminSocket
	second := start(t, cfg)
	first.stop()
	at := served.Load()
	wait.For(t, "requests go on", func() bool { return served.Load() > at+100 })
	close(stop)
	wg.Wait()
	if n := failed.Load(); n != 0 {
		t.Errorf("%d of %d requests failed", n, served.Load())
	}
	if _, err := (admin.Client{Socket: cfg.AdminSocket}).Status(t.Context()); err != nil {
		t.Errorf("the admin socket is gone with the first: %v", err)
	}
	second.stop()
	_, err := (admin.Client{Socket: cfg.AdminSocket}).Status(t.Context())
	if !errs.Is(err, errs.Unavailable) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := os.Lstat(cfg.AdminSocket); !os.IsNotExist(err) {
		t.Errorf("the socket was left: %v", err)
	}
}

// TestAsksAfterTheFirstListing: no change tells of a certificate, or of a user of a route, that was deleted after the
// ingress asked for them and before it listed the store. So it asks once more.
func TestAsksAfterTheFirstListing(t *testing.T) {
	l := newLink(newControl(t).store)
	l.sever()
	var certificates, passwords atomic.Int64
	start(t, Config{Reader: l, Logger: quiet,
		Certificates: func(context.Context) ([]Certificate, error) { certificates.Add(1); return nil, nil },
		Passwords:    func(context.Context) ([]Password, error) { passwords.Add(1); return nil, nil }})
	both := func(n int64) func() bool {
		return func() bool { return certificates.Load() >= n && passwords.Load() >= n }
	}
	wait.For(t, "the ingress asks at its start", both(1))
	l.restore()
	wait.For(t, "the ingress asks after the listing", both(2))
}
