package certificate

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/certificates"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pebbletest"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a store and a name server that outlive servers. Everything is shown by
// dns-01; the tests of the built server show the others.
type env struct {
	*testing.T
	pebble *pebbletest.Server
	store  entity.Store
	sealer *schema.Sealer
	routes *routes.Service

	mu      sync.Mutex
	fail    error               // of Present
	hang    bool                // of Cleanup
	present map[string][]string // values of each name that were ever presented
	records map[string]bool     // those that are there, as name and value
}

func newEnv(t *testing.T, pebble *pebbletest.Server) *env {
	t.Helper()
	s := pgtest.Store(t, api.Kinds()...)
	a := &apps.Service{Store: s, Logger: slog.New(slog.DiscardHandler)}
	e := &env{
		T: t, pebble: pebble, store: s, sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key")), routes: &routes.Service{Store: s, Apps: a},
		present: map[string][]string{}, records: map[string]bool{},
	}
	if err := projects.Ensure(t.Context(), s, projects.Default); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Create(t.Context(), "", "shop"); err != nil {
		t.Fatal(err)
	}
	return e
}

// dns is the name server of an env.
type dns struct{ e *env }

// Present implements DNS.
func (d dns) Present(ctx context.Context, name, value string) error {
	e := d.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fail != nil {
		return e.fail
	}
	if !slices.Contains(e.present[name], value) {
		e.present[name] = append(e.present[name], value)
	}
	e.records[name+" "+value] = true
	return e.pebble.SetRecord(ctx, name, value)
}

// Cleanup implements DNS.
func (d dns) Cleanup(ctx context.Context, name, value string) error {
	e := d.e
	e.mu.Lock()
	hang := e.hang
	e.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.records, name+" "+value)
	return e.pebble.ClearRecord(ctx, name)
}

// failing has the name server refuse records; nil: it takes them.
func (e *env) failing(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = err
}

// presented returns how many records of a host there ever were, and how many records
// of any host are there now.
func (e *env) presented(host string) (ever, now int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.present[dnsPrefix+host]), len(e.records)
}

func (e *env) route(host string) {
	e.Helper()
	if _, err := e.routes.Set(e.Context(), routes.SetRequest{Host: host, App: "shop"}); err != nil {
		e.Fatal(err)
	}
}

func (e *env) service(s entity.Store) *certificates.Service {
	return &certificates.Service{Store: s, Sealer: e.sealer, Routes: e.routes}
}

// start starts a server; m is nil, or the store of one that dies.
func (e *env) start(server string, m *mortal, change ...func(*Orders)) (stop func()) {
	e.Helper()
	var st entity.Store = e.store
	if m != nil {
		st = m
	}
	set := informer.New(informer.Config{Reader: e.store})
	log := slog.New(slog.NewTextHandler(e.Output(), nil)).With("server", server)
	h := &Hosts{Store: e.store, Informers: set, Enabled: true, Logger: log}
	r := &Orders{
		Store: st, Sealer: e.sealer, DNS: dns{e}, Server: id.Node(server), FirstRetry: 100 * time.Millisecond, Logger: log,
		Config: Config{Directory: e.pebble.Directory, CAFile: e.pebble.CAFile, Email: "ops@example.com", Challenges: []string{typeDNS}},
	}
	for _, c := range change {
		c(r)
	}
	hosts, orders := h.Controller(), r.Controller()
	h.Store, r.Store = kittest.Hold(e, e.store, hosts), kittest.Hold(e, st, orders)
	r.Certificates = e.service(r.Store)
	_, stop = kittest.Run(e, set, kit.Config{StopGrace: time.Millisecond, Logger: log}, hosts, orders)
	return stop
}

// order returns the order of a host.
func (e *env) order(host string) (*certificate.CertificateOrder, error) {
	pid, err := projects.Find(e.Context(), e.store, "")
	if err != nil {
		return nil, err
	}
	return entity.ByName[certificate.CertificateOrder](e.Context(), e.store, pid, certificates.OrderName(host))
}

// issued waits until the host has a certificate other than one with a fingerprint,
// and its order rests.
func (e *env) issued(host, other string) (c *certificate.Certificate) {
	e.Helper()
	wait.NoError(e, host+" has a certificate", func() error {
		o, err := e.order(host)
		if err != nil {
			return err
		}
		if c, err = e.service(e.store).OfOrder(e.Context(), o); err != nil {
			return err
		}
		if c == nil || c.Spec.Fingerprint == other || o.Status.Phase != certificate.OrderPhaseIssued {
			return fmt.Errorf("%+v", o.Status)
		}
		if o.Status.Key != nil || o.Status.URL != "" || o.Status.Challenges != nil || o.Status.Server != "" {
			return fmt.Errorf("it was issued, and there is %+v", o.Status)
		}
		return nil
	}, wait.Within(3*time.Minute))
	return c
}

// none waits until nothing is ordered for a host.
func (e *env) none(host string) {
	e.Helper()
	wait.NoError(e, "nothing is ordered for "+host, func() error {
		if o, err := e.order(host); !errs.Is(err, errs.NotFound) {
			return fmt.Errorf("%+v %v", o, err)
		}
		return nil
	})
}

// mortal is the store as seen by a server that dies with its n-th write: the write
// happens, but its answer and everything after it is lost.
type mortal struct {
	entity.Store
	died chan struct{}

	mu   sync.Mutex
	left int
}

var errDead = errs.New(errs.Unavailable, "the server is dead")

func newMortal(s entity.Store, writes int) *mortal {
	return &mortal{Store: s, left: writes, died: make(chan struct{})}
}

func (m *mortal) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock() // one at a time, so that nothing follows the last
	if m.left == 0 {
		return entity.TxnResult{}, errDead
	}
	res, err := m.Store.Txn(ctx, req)
	if m.left--; m.left == 0 {
		close(m.died)
		return entity.TxnResult{}, errDead
	}
	return res, err
}
