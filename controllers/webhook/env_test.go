package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/webhooks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/etcdtest"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a store and a receiver that outlive servers.
type env struct {
	*testing.T
	store    entity.Store
	service  *webhooks.Service
	project  schema.ID
	receiver *httptest.Server

	mu       sync.Mutex
	answer   func(id string, attempt int) int // status of a request; nil: 204
	requests map[string]int                   // by event id
	accepted map[string]int
	types    []string // of the accepted events
	problems []string
	secret   string
}

// stores run a test on each store.
func stores(t *testing.T, test func(e *env)) {
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(newEnv(t, pgtest.Store(t, api.Kinds()...)))
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: filepath.Join(t.TempDir(), "db"), Kinds: api.Kinds()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		test(newEnv(t, s))
	})
}

// withEtcd runs a test on etcd, which bounds transactions most.
func withEtcd(t *testing.T, test func(e *env)) {
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		s, err := etcdstore.Open(t.Context(), etcdstore.Config{URL: "etcd://" + etcdtest.Start(t).Address + "/test", Kinds: api.Kinds()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		test(newEnv(t, s))
	})
}

func newEnv(t *testing.T, s entity.Store) *env {
	t.Helper()
	e := &env{
		T: t, store: s, requests: map[string]int{}, accepted: map[string]int{},
		service: &webhooks.Service{Store: s, Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key"))},
	}
	if err := projects.Ensure(t.Context(), s, projects.Default); err != nil {
		t.Fatal(err)
	}
	var err error
	if e.project, err = projects.Find(t.Context(), s, ""); err != nil {
		t.Fatal(err)
	}
	e.receiver = httptest.NewServer(http.HandlerFunc(e.receive))
	t.Cleanup(e.receiver.Close)
	return e
}

// receive is the receiver.
func (e *env) receive(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id := r.Header.Get("webhook-id")
	var event struct {
		Type      string
		Timestamp time.Time
		Data      map[string]any
	}
	err := json.Unmarshal(body, &event)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || event.Type == "" || event.Timestamp.IsZero() || r.Method != http.MethodPost {
		e.problems = append(e.problems, fmt.Sprintf("%s %s: %v", r.Method, body, err))
	}
	if seconds, err := strconv.ParseInt(r.Header.Get("webhook-timestamp"), 10, 64); err != nil {
		e.problems = append(e.problems, err.Error())
	} else if want, err := webhooks.Sign([]string{e.secret}, id, time.Unix(seconds, 0), body); err != nil || !strings.Contains(r.Header.Get("webhook-signature"), want) {
		e.problems = append(e.problems, fmt.Sprintf("signature %q, want %q, %v", r.Header.Get("webhook-signature"), want, err))
	}
	e.requests[id]++
	status := http.StatusNoContent
	if e.answer != nil {
		status = e.answer(id, e.requests[id])
	}
	if status == http.StatusNoContent {
		e.accepted[id]++
		e.types = append(e.types, event.Type)
	}
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "3600")
	}
	if status == http.StatusFound {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(status)
}

// hook makes a webhook for the receiver.
func (e *env) hook(name string, patterns ...string) *webhook.Webhook {
	e.Helper()
	w, secret, err := e.service.Create(e.Context(), webhooks.Request{Name: name, URL: e.receiver.URL + "/" + name, Events: patterns})
	if err != nil {
		e.Fatal(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.secret = secret
	return w
}

// server is a running server.
type server struct {
	*env
	stop func()
}

// start starts a server; m is nil, or the store of one that dies.
func (e *env) start(m *mortal, change ...func(*Sender)) *server {
	e.Helper()
	var st entity.Store = e.store
	if m != nil {
		st = m
	}
	ctx, cancel := context.WithCancel(context.Background())
	informers := informer.New(informer.Config{Reader: e.store})
	log := slog.New(slog.NewTextHandler(e.Output(), nil))
	f := &Feed{Store: st, Informers: informers, Logger: log}
	s := &Sender{
		Store: st, Webhooks: e.service, Informers: informers, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		FirstRetry: time.Millisecond, Lost: 100 * time.Millisecond, Logger: log,
	}
	for _, c := range change {
		c(s)
	}
	rt := kit.New(kit.Config{Informers: informers, StopGrace: time.Millisecond, Logger: log})
	feed, sender := f.Controller(), s.Controller()
	f.Store, s.Store = kittest.Hold(e, st, feed), kittest.Hold(e, st, sender)
	for _, c := range []kit.Controller{feed, sender} {
		if err := rt.Add(c); err != nil {
			e.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = informers.Run(ctx) })
	wg.Go(func() { _ = rt.Run(ctx) })
	out := &server{env: e, stop: sync.OnceFunc(func() { cancel(); wg.Wait() })}
	e.Cleanup(out.stop)
	return out
}

// begun waits until the store has the position of a feed.
func (e *env) begun() {
	e.Helper()
	wait.NoError(e, "there is a position", func() error {
		_, err := entity.ByName[webhook.WebhookFeed](e.Context(), e.store, "", feedName)
		return err
	})
}

// sandbox makes a sandbox.
func (e *env) sandbox(phase sandbox.SandboxPhase) *sandbox.Sandbox {
	e.Helper()
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Template.Image, sb.Status.Phase = e.project, "image", phase
	sb.Spec.Template.Env = map[string]string{"TOKEN": "hunter2"}
	if err := entity.Create(e.Context(), e.store, sb); err != nil {
		e.Fatal(err)
	}
	return sb
}

// phase writes the phase of a sandbox, and what belongs to it.
func (e *env) phase(sb *sandbox.Sandbox, phase sandbox.SandboxPhase) {
	e.Helper()
	_, err := entity.ModifyStatus(e.Context(), e.store, sb.ID, func(sb *sandbox.Sandbox) error {
		now := timestamp(time.Now())
		switch sb.Status.Phase = phase; phase {
		case sandbox.SandboxPhaseRunning:
			if sb.Status.StartedAt == nil {
				sb.Status.StartedAt = &now
			}
		case sandbox.SandboxPhasePaused:
			sb.Status.Pauses++
			sb.Status.PausedAt = &now
		case sandbox.SandboxPhaseStopped:
			sb.Status.EndedAt, sb.Status.Reason = &now, sandbox.EndReasonExit
		}
		return nil
	})
	if err != nil {
		e.Fatal(err)
	}
}

// deliveries returns the deliveries of a webhook.
func (e *env) deliveries(w *webhook.Webhook) []*webhook.WebhookDelivery {
	e.Helper()
	all, _, err := entity.List[webhook.WebhookDelivery](e.Context(), e.store, entity.Where(webhook.WebhookDeliveryAttrWebhook, w.GetID()))
	if err != nil {
		e.Fatal(err)
	}
	return all
}

// history returns the events of the project, oldest first. It fails if their numbers
// have gaps, or an event is there twice.
func (e *env) history() []*event.Event {
	e.Helper()
	all, _, err := entity.List[event.Event](e.Context(), e.store, entity.Query{
		Project: e.project, Order: &entity.Order{Index: event.EventIndexOldest.Name, Equal: [][]byte{schema.EncodeIndexString(string(e.project))}},
	})
	if err != nil {
		e.Fatal(err)
	}
	states := map[string]bool{}
	for i, x := range all {
		if want := all[0].Spec.Number + int64(i); x.Spec.Number != want {
			e.Errorf("event %s has number %d, want %d", x.ID, x.Spec.Number, want)
		}
		states[string(x.ID)] = true
	}
	if len(states) != len(all) {
		e.Errorf("%d events, %d different ones", len(all), len(states))
	}
	return all
}

// settled waits until a webhook has n deliveries, all in a phase.
func (e *env) settled(w *webhook.Webhook, n int, phase webhook.DeliveryPhase) []*webhook.WebhookDelivery {
	e.Helper()
	var all []*webhook.WebhookDelivery
	wait.For(e, fmt.Sprintf("%d deliveries are %s", n, phase), func() bool {
		all = e.deliveries(w)
		for _, d := range all {
			if d.Status.Phase != phase || d.Spec.Replays != d.Status.Replays {
				return false
			}
		}
		return len(all) == n
	}, wait.Within(time.Minute), wait.State(func() any {
		var out []string
		for _, d := range all {
			out = append(out, fmt.Sprintf("%s %s %d %s", d.Spec.Type, d.Status.Phase, d.Status.Attempts, d.Status.Message))
		}
		return out
	}))
	return all
}

// check fails if the receiver saw a problem, or an event more than once.
func (e *env) check(most int) {
	e.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.problems {
		e.Error(p)
	}
	for id, n := range e.accepted {
		if n > most {
			e.Errorf("%s was accepted %d times", id, n)
		}
	}
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

func (m *mortal) alive() bool {
	select {
	case <-m.died:
		return false
	default:
		return true
	}
}

func (m *mortal) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock() // one at a time, so that nothing follows the last
	if !m.alive() {
		return entity.TxnResult{}, errDead
	}
	res, err := m.Store.Txn(ctx, req)
	if m.left--; m.left == 0 {
		close(m.died)
		return entity.TxnResult{}, errDead
	}
	return res, err
}
