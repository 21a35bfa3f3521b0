package ingress

import (
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// TestServiceIsMissing: no wait brings a service that no version has. One that sleeps is waited for, and so is
// one that a deployment may bring, or of which the ingress does not know.
func TestServiceIsMissing(t *testing.T) {
	in := start(t, Config{HoldTimeout: 300 * time.Millisecond})
	worker, web := Service{"app-1", "worker", "v1"}, Service{"app-1", "web", "v1"}
	for _, test := range []struct {
		name     string
		services []Service
		change   func(*State)
		want     int
		says     string
	}{
		{"missing", []Service{worker, {"app-2", "web", "v1"}, {"app-1", "web", "v0"}}, func(*State) {}, 404, "has no service"},
		{"asleep", []Service{worker, web}, func(*State) {}, 503, "within 300ms"},
		{"of the canary", []Service{{"app-1", "web", "v2"}}, func(s *State) {
			s.Apps[0].Versions = append(s.Apps[0].Versions, Share{Version: "v2", Weight: 1})
		}, 503, "within 300ms"},
		{"deploying", []Service{worker}, func(s *State) { s.Apps[0].Deploying = true }, 503, "within 300ms"},
		{"unknown", nil, func(*State) {}, 503, "within 300ms"},
	} {
		s := oneApp()
		s.Services = test.services
		test.change(s)
		in.install(s)
		if code, body := get(t, client(t), in.url, testHost); code != test.want || !strings.Contains(body, test.says) {
			t.Errorf("%s: %d %s", test.name, code, body)
		}
	}
}

func TestHoldsUntilReady(t *testing.T) {
	up := upstream(t, says("hello"))
	in := start(t, Config{})
	in.install(&State{Apps: []App{{ID: "app-1", Name: "shop", Deploying: true}}}) // the first deployment
	c := client(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if code, body := get(t, c, in.url, testHost); code != 200 || body != "hello" {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	wait.For(t, "20 requests wait", func() bool { return in.status().Held == 20 })
	in.install(oneApp()) // active, nothing ready
	in.install(oneApp(up.URL))
	wg.Wait()
	if n := in.status().Held; n != 0 {
		t.Errorf("%d requests are counted as waiting", n)
	}
}

func TestHoldIsBounded(t *testing.T) {
	up := upstream(t, says("hello"))
	in := start(t, Config{HoldTimeout: 2 * wait.Limit, HoldLimit: 3})
	in.install(oneApp())
	c := client(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if code, body := get(t, c, in.url, testHost); code != 200 || body != "hello" {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	wait.For(t, "3 requests wait", func() bool { return in.status().Held == 3 })
	refused(t, in, "too many")
	in.install(oneApp(up.URL))
	wg.Wait()
}

func TestHoldTimeout(t *testing.T) {
	in := start(t, Config{HoldTimeout: 300 * time.Millisecond})
	in.install(oneApp())
	refused(t, in, "within 300ms")
}

// refused makes a request and requires status 503 with a code.
func refused(t *testing.T, in *running, why string) {
	t.Helper()
	resp, err := client(t).Do(request(t, "GET", in.url, testHost))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(b), why) {
		t.Errorf("%d %v %s %v", resp.StatusCode, resp.Header, b, err)
	}
}

func TestHoldCanBeOff(t *testing.T) {
	in := start(t, Config{HoldTimeout: -1})
	in.install(oneApp())
	begin := time.Now()
	if code, body := get(t, client(t), in.url, testHost); code != 503 || !strings.Contains(body, "within 0s") || time.Since(begin) > soon {
		t.Errorf("%d %s after %s", code, body, time.Since(begin))
	}
}
