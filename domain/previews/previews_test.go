package previews

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

type env struct {
	*Service
	t     *testing.T
	woken []id.Sandbox
}

func newEnv(t *testing.T) *env {
	e := &env{t: t}
	e.Service = &Service{
		Store: pgtest.Store(t, api.Kinds()...), Key: preview.NewKey([]byte("secret")),
		URL:         func(label string) string { return "http://" + label + ".example/" },
		WakeSandbox: func(_ context.Context, sid id.Sandbox) error { e.woken = append(e.woken, sid); return nil },
	}
	if err := projects.Ensure(t.Context(), e.Store, projects.Default); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *env) sandbox(set ...func(*sandbox.Sandbox)) id.Sandbox {
	e.t.Helper()
	pid, err := projects.Find(e.t.Context(), e.Store, "")
	if err != nil {
		e.t.Fatal(err)
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Template.Image = pid, "img"
	for _, f := range set {
		f(sb)
	}
	if err := entity.Create(e.t.Context(), e.Store, sb); err != nil {
		e.t.Fatal(err)
	}
	return sb.GetID()
}

func TestCreate(t *testing.T) {
	e := newEnv(t)
	sid := e.sandbox()
	var wg sync.WaitGroup
	made := make([]*sandbox.Preview, 8)
	for i := range made {
		wg.Go(func() {
			var err error
			if made[i], err = e.Create(t.Context(), Request{Sandbox: sid, Port: 80, Public: i%2 == 0}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, p := range made {
		if p.ID != made[0].ID || p.Name != preview.Label(string(sid), 80) {
			t.Errorf("%s %s and %s", p.ID, p.Name, made[0].ID)
		}
	}
	p, err := e.Create(t.Context(), Request{Sandbox: sid, Port: 80, TTL: time.Minute})
	if err != nil || p.Spec.Public || p.Spec.ExpiresAt == nil {
		t.Fatalf("changed: %+v %v", p, err)
	}
	if _, err := preview.Verify(p.Spec.Key, e.Token(p), time.Now(), string(p.ID)); err != nil {
		t.Error(err)
	}
	// A link is not valid for longer than the preview is there.
	link, end, err := e.Sign(t.Context(), p.GetID(), time.Hour)
	if err != nil || end.After(*p.Spec.ExpiresAt) {
		t.Errorf("until %v, %v", end, err)
	}
	u, err := url.Parse(link)
	if err != nil || u.Host != preview.Label(string(sid), 80)+".example" {
		t.Errorf("%q %v", link, err)
	}
	if _, err := preview.Verify(p.Spec.Key, u.Query().Get(preview.Parameter), time.Now(), string(p.ID)); err != nil {
		t.Error(err)
	}
	if err := e.Wake(t.Context(), p.GetID()); err != nil || len(e.woken) != 1 || e.woken[0] != sid {
		t.Errorf("woken %v %v", e.woken, err)
	}
	e.DialSandbox = func(_ context.Context, of id.Sandbox, port int) (sandboxes.Conn, error) {
		if of != sid || port != 80 {
			t.Errorf("dials %s %d", of, port)
		}
		return nil, nil
	}
	if _, err := e.Dial(t.Context(), p.GetID(), 80); err != nil {
		t.Error(err)
	}
	if _, err := e.Dial(t.Context(), p.GetID(), 81); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("another port: %v", err)
	}
	all, err := e.Create(t.Context(), Request{Sandbox: sid})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Dial(t.Context(), all.GetID(), 80); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("every port: %v", err)
	}
	if err := entity.Remove[sandbox.Sandbox](t.Context(), e.Store, sid); err != nil {
		t.Fatal(err)
	}
	if _, err := entity.Get[sandbox.Preview](t.Context(), e.Store, p.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("it outlives its sandbox: %v", err)
	}
}

func TestRefused(t *testing.T) {
	e := newEnv(t)
	ended := e.sandbox(func(s *sandbox.Sandbox) { s.Status.Phase = sandbox.SandboxPhaseStopped })
	stopping := e.sandbox(func(s *sandbox.Sandbox) { s.Spec.Desired = sandbox.DesiredStateStopped })
	pid, err := projects.Find(t.Context(), e.Store, "")
	if err != nil {
		t.Fatal(err)
	}
	tpl, pool := sandbox.NewTemplate(), sandbox.NewWarmPool()
	tpl.Project, tpl.Name = pid, "base"
	pool.Project = pid
	for _, o := range []schema.Object{tpl, pool} {
		pool.Spec.Template = tpl.GetID()
		if err := entity.Create(t.Context(), e.Store, o); err != nil {
			t.Fatal(err)
		}
	}
	warm := e.sandbox(func(s *sandbox.Sandbox) { s.Spec.WarmPool = pool.GetID() })
	for _, sid := range []id.Sandbox{ended, stopping, warm} {
		if _, err := e.Create(t.Context(), Request{Sandbox: sid, Port: 80}); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("%v", err)
		}
	}
	if _, err := e.Create(t.Context(), Request{Sandbox: "sb-x", Port: 80}); !errs.Is(err, errs.NotFound) {
		t.Errorf("no sandbox: %v", err)
	}
	sid := e.sandbox()
	for port := range sandbox.MaxPreviews {
		if _, err := e.Create(t.Context(), Request{Sandbox: sid, Port: port}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Create(t.Context(), Request{Sandbox: sid, Port: 65535}); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one more: %v", err)
	}
	if _, err := e.Create(t.Context(), Request{Sandbox: sid, Port: 1, Public: true}); err != nil {
		t.Errorf("one that exists: %v", err)
	}
	full, err := entity.ByName[sandbox.Preview](t.Context(), e.Store, pid, preview.Label(string(sid), 2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := entity.ModifySpec(t.Context(), e.Store, full.ID, func(p *sandbox.Preview) error {
		now := time.Now()
		p.Spec.ExpiresAt = &now
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), Request{Sandbox: sid, Port: 65535}); err != nil {
		t.Errorf("in place of one that has ended: %v", err)
	}
	// What another installation's key signed is not opened by this one's.
	p, err := e.Create(t.Context(), Request{Sandbox: e.sandbox(), Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	e.Key = preview.NewKey([]byte("another"))
	if _, _, err := e.Sign(t.Context(), p.GetID(), 0); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("another key: %v", err)
	}
	e.URL = func(string) string { return "" }
	if _, _, err := e.Sign(t.Context(), p.GetID(), 0); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("no ingress: %v", err)
	}
}
