package ingress

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admin "miren.dev/runtime/api/ingress"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// withAdmin is a configuration with an admin socket, and its client.
func withAdmin(t *testing.T) (Config, admin.Client) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	return Config{AdminSocket: socket}, admin.Client{Socket: socket}
}

func loadOf(t *testing.T, c admin.Client, version schema.ID, seen int64, d time.Duration) (admin.Load, admin.ServiceLoad) {
	t.Helper()
	l, err := c.Load(t.Context(), seen, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range l.Services {
		if s.Version == version && s.Service == "web" {
			return l, s
		}
	}
	t.Fatalf("no load of %s: %+v", version, l)
	return l, admin.ServiceLoad{}
}

// TestWakes: a request for a version without a sandbox is held, the question for the load is answered at once, and the
// request reaches the sandbox that comes.
func TestWakes(t *testing.T) {
	up := upstream(t, says("hello"))
	cfg, c := withAdmin(t)
	in := start(t, cfg)
	in.install(oneApp())
	began := time.Now()
	answered := make(chan admin.Load, 1)
	go func() {
		l, err := c.Load(t.Context(), 0, 30*time.Second)
		if err != nil {
			t.Error(err)
		}
		answered <- l
	}()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if code, body := get(t, client(t), in.url, testHost); code != 200 || body != "hello" {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	l := <-answered
	if l.Wakes != 1 || time.Since(began) > soon {
		t.Errorf("%+v after %s", l, time.Since(began))
	}
	wait.For(t, "all are held", func() bool { _, s := loadOf(t, c, "v1", l.Wakes-1, 0); return s.Held == 5 })
	in.install(oneApp(up.URL))
	wg.Wait()
	if l, s := loadOf(t, c, "v1", l.Wakes, 0); s.Held != 0 || s.Requests != 5 || l.Wakes != 1 {
		t.Errorf("afterwards %+v", l)
	}
	in.install(&State{})
	if l, err := c.Load(t.Context(), 1, 0); err != nil || len(l.Services) != 0 {
		t.Errorf("the version is gone: %+v %v", l, err)
	}
}

// TestLoadIsAMean: requests count for the part of the time in which they are in flight, and an upgraded connection as long as
// it is open.
func TestLoadIsAMean(t *testing.T) {
	release := make(chan struct{})
	up := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	cfg, c := withAdmin(t)
	in := start(t, cfg)
	in.install(oneApp(up.URL))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { get(t, client(t), in.url, testHost) })
	}
	wait.For(t, "three are in flight", func() bool { return in.status().InFlight == 3 })
	if l, s := loadOf(t, c, "v1", 0, 300*time.Millisecond); s.InFlight != 3 || l.Over < 300*time.Millisecond {
		t.Errorf("%+v", l)
	}
	// The sandbox leaves the table, and its requests still count.
	in.install(oneApp())
	if l, s := loadOf(t, c, "v1", 0, 0); s.InFlight != 3 {
		t.Errorf("after it left %+v", l)
	}
	close(release)
	wg.Wait()
	if l, s := loadOf(t, c, "v1", 0, 0); s.InFlight != 0 {
		t.Errorf("afterwards %+v", l)
	}
}

// TestCanaryMissesRequests: requests that draw a version without a sandbox go to the other one, and are counted.
func TestCanaryMissesRequests(t *testing.T) {
	up := upstream(t, says("hello"))
	cfg, c := withAdmin(t)
	in := start(t, cfg)
	s := oneApp(up.URL)
	s.Apps[0].Versions = []Share{{Version: "v1", Weight: 50}, {Version: "v2", Weight: 50}}
	in.install(s)
	hc := client(t)
	wait.For(t, "v2 is drawn", func() bool {
		if code, _ := get(t, hc, in.url, testHost); code != 200 {
			t.Fatalf("%d", code)
		}
		_, l := loadOf(t, c, "v2", 0, 0)
		return l.Missed > 0 && l.Requests == 0
	})
}

// deadStore is a store whose server is away.
type deadStore struct{ entity.Reader }

func (deadStore) List(context.Context, entity.Query) (entity.Page, error) {
	return entity.Page{}, errors.New("connection refused")
}

func (deadStore) Watch(context.Context, entity.WatchQuery) (entity.Watch, error) {
	return nil, errors.New("connection refused")
}

// TestNotWoken: with the server away, a request for an app that sleeps is answered after the bound, with the reason.
func TestNotWoken(t *testing.T) {
	in := start(t, Config{Reader: deadStore{}, HoldTimeout: 300 * time.Millisecond, Logger: quiet})
	in.install(oneApp())
	wait.For(t, "the store is known to be away", in.follower.away)
	code, body := get(t, client(t), in.url, testHost)
	if code != 503 || !strings.Contains(body, "wakes apps that sleep, does not answer") || !strings.Contains(body, "within 300ms") {
		t.Errorf("%d %s", code, body)
	}
}
