package deployment_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// mortal is the store as seen by a server that dies with its n-th write: the
// write happens, but its answer and everything after it is lost.
type mortal struct {
	entity.Store
	die func()

	mu    sync.Mutex
	left  int // negative: never dies
	count int
	dead  bool
}

var errDead = errs.New(errs.Unavailable, "the server is dead")

func (m *mortal) alive() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errDead
	}
	return nil
}

func (m *mortal) write(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock() // one at a time, so that nothing follows the last
	if m.dead {
		return errDead
	}
	m.count++
	if m.left > 0 {
		m.left--
	}
	err := do()
	if m.left == 0 {
		m.dead = true
		go m.die()
		return errDead
	}
	return err
}

func (m *mortal) Txn(ctx context.Context, req entity.TxnRequest) (res entity.TxnResult, err error) {
	err = m.write(func() error { res, err = m.Store.Txn(ctx, req); return err })
	return res, err
}

func (m *mortal) Revoke(ctx context.Context, id schema.LeaseID) error {
	return m.write(func() error { return m.Store.Revoke(ctx, id) })
}

func (m *mortal) Grant(ctx context.Context, ttl time.Duration) (entity.Lease, error) {
	if err := m.alive(); err != nil {
		return entity.Lease{}, err
	}
	return m.Store.Grant(ctx, ttl)
}

func (m *mortal) KeepAlive(ctx context.Context, id schema.LeaseID) (entity.Lease, error) {
	if err := m.alive(); err != nil {
		return entity.Lease{}, err
	}
	return m.Store.KeepAlive(ctx, id)
}

func (m *mortal) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	if err := m.alive(); err != nil {
		return schema.Record{}, err
	}
	return m.Store.Get(ctx, kind, id)
}

func (m *mortal) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if err := m.alive(); err != nil {
		return entity.Page{}, err
	}
	return m.Store.List(ctx, q)
}

// Wherever a server dies in a rollout, the next one brings it to the same end
// as without the crash.
func TestDiesAfterEveryWrite(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 5
	}
	if s := os.Getenv("CRASH_STEP"); s != "" {
		step, _ = strconv.Atoi(s)
	}
	for _, tc := range []struct {
		name   string
		begin  func(e *env, name string) *app.Deployment
		end    app.DeploymentPhase
		reason app.FailureReason
	}{
		{"redeploy", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("ok", "web=ok", "worker=ok"))
		}, app.DeploymentPhaseSucceeded, ""},
		{"redeploy while it sleeps", func(e *env, name string) *app.Deployment {
			e.bounds(name, 0, 1)
			e.load(name, 0)
			return e.deploy(name, e.source("ok", "web=ok"))
		}, app.DeploymentPhaseSucceeded, ""},
		{"rollback", func(e *env, name string) *app.Deployment {
			d, err := e.apps.Rollback(e.Context(), "", name, "v1", apps.DeployRequest{})
			if err != nil {
				e.Fatal(err)
			}
			return d
		}, app.DeploymentPhaseSucceeded, ""},
		{"crash", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("ok", "web=ok", "worker=crash"))
		}, app.DeploymentPhaseFailed, app.FailureReasonCrash},
		{"cancel", func(e *env, name string) *app.Deployment {
			d := e.deploy(name, e.source("hang", "web=ok"))
			if _, err := e.apps.Cancel(e.Context(), "", name); err != nil {
				e.Fatal(err)
			}
			return d
		}, app.DeploymentPhaseCanceled, ""},
		{"crash in the bake", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("ok", "web=late", "worker=ok"))
		}, app.DeploymentPhaseFailed, app.FailureReasonCrash},
		{"canary", func(e *env, name string) *app.Deployment {
			return e.canary(name, e.source("ok", "web=ok"), 10)
		}, app.DeploymentPhaseSucceeded, ""},
		{"canary that crashes in the bake", func(e *env, name string) *app.Deployment {
			return e.canary(name, e.source("ok", "web=late"), 10)
		}, app.DeploymentPhaseFailed, app.FailureReasonCrash},
		{"promote", func(e *env, name string) *app.Deployment {
			stop := e.control(e.store)
			e.succeed(e.canary(name, e.source("ok", "web=ok"), 10))
			e.settled(name)
			stop()
			d, err := e.apps.Promote(e.Context(), "", name, apps.DeployRequest{})
			if err != nil {
				e.Fatal(err)
			}
			return d
		}, app.DeploymentPhaseSucceeded, ""},
		{"disk", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("ok", "web@data=ok", "worker=ok"))
		}, app.DeploymentPhaseSucceeded, ""},
		{"disk with snapshots", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("ok", "web@kept=ok"))
		}, app.DeploymentPhaseSucceeded, ""},
		{"crash with a disk", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("ok", "web@data=crash"))
		}, app.DeploymentPhaseFailed, app.FailureReasonCrash},
		{"routes", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("ok", "web=ok", "route=a.example.com", fmt.Sprintf("route=b%d.example.com", e.sources.count())))
		}, app.DeploymentPhaseSucceeded, ""},
		{"bad build", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("fail", "web=ok"))
		}, app.DeploymentPhaseFailed, app.FailureReasonBuild},
		{"beyond the quota", func(e *env, name string) *app.Deployment {
			return e.deploy(name, e.source("ok", "web=ok", "many=ok"))
		}, app.DeploymentPhaseFailed, app.FailureReasonCapacity},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.bake = 20 * time.Millisecond
			e.forgetful()
			const name = "shop"
			stop := e.control(e.store)
			e.succeed(e.deploy(name, e.source("ok", "web@data=ok")))
			before := e.settled(name).Status.Active()
			e.limit(6)
			stop()
			if strings.HasSuffix(tc.name, "in the bake") {
				e.bake = time.Hour // it ends with the crash
			}
			for n := 1; ; n += step {
				d := tc.begin(e, name)

				died := make(chan struct{})
				m := &mortal{Store: e.store, left: n, die: func() { close(died) }}
				stop := e.control(m)
				survived := false
				e.eventually("it dies or is done", func() bool {
					select {
					case <-died:
						return true
					default:
						survived = e.get(d).Status.Phase == tc.end && e.leftover(e.app(name)) == ""
						return survived
					}
				})
				stop()
				stop = e.control(e.store)
				d = e.phase(d, tc.end)
				a := e.settled(name)
				stop()
				want := before
				tried := id.AppVersion("")
				switch {
				case tc.name == "canary":
					tried = d.Status.Version
				case tc.end == app.DeploymentPhaseSucceeded:
					want = d.Status.Version
				}
				if got := a.Status.Canary(); got != tried {
					t.Fatalf("after write %d: %q is tried, want %q", n, got, tried)
				}
				if a.Status.Active() != want {
					t.Fatalf("after write %d: %s serves, want %s", n, a.Status.Active(), want)
				}
				if f := d.Status.Failure; tc.reason != "" && (f == nil || f.Reason != tc.reason) {
					t.Fatalf("after write %d: failure %+v, want %s", n, f, tc.reason)
				}
				if versions := list(e, func(v *app.AppVersion) bool { return v.Spec.App == a.GetID() }); len(versions) != int(a.Spec.VersionCounter) {
					t.Fatalf("after write %d: %d versions, counted %d", n, len(versions), a.Spec.VersionCounter)
				}
				wantHosts, hosts := []string{}, []string{}
				for _, r := range e.version(&app.Deployment{Status: app.DeploymentStatus{Version: want}}).Spec.Routes {
					wantHosts = append(wantHosts, r.Host)
				}
				for _, r := range list(e, func(*app.Route) bool { return true }) {
					hosts = append(hosts, r.Spec.Host)
				}
				if slices.Sort(hosts); !slices.Equal(hosts, wantHosts) {
					t.Fatalf("after write %d: routes of %q, want %q", n, hosts, wantHosts)
				}
				before = want
				if survived {
					t.Logf("%d writes, died after each", n-1)
					return
				}
			}
		})
	}
}
