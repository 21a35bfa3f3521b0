package ingress

import (
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// A request for a service that no version has is answered at once, one for a
// service that sleeps, or of which that is not known, waits.
func TestNoService(t *testing.T) {
	in := start(t, Config{HoldTimeout: 2 * wait.Limit})
	share := func(v schema.ID, weight int64, services ...string) Share {
		return Share{Version: v, Weight: weight, Services: append([]string{}, services...)}
	}
	route := Route{Host: "admin.example", App: "app-1", Service: "admin"}
	worker := share("v1", 100)
	for name, versions := range map[string][]Share{
		"worker only": {worker},
		"two":         {share("v1", 50), share("v2", 50, "api")},
		"preview":     {worker, {Version: "v2", Preview: "p", Services: []string{"web", "admin"}}},
	} {
		in.install(&State{Apps: []App{{ID: "app-1", Name: "shop", Versions: versions, Deploying: true}}, Routes: []Route{route}})
		begin := time.Now()
		for host, service := range map[string]string{testHost: "web", "admin.example": "admin"} {
			code, body := get(t, client(t), in.url, host)
			if code != 503 || !strings.Contains(body, `no service "`+service+`" with a port`) || time.Since(begin) > soon {
				t.Errorf("%s, %s: %d %s after %s", name, host, code, body, time.Since(begin))
			}
		}
	}
	for name, versions := range map[string][]Share{
		"sleeps":       {share("v1", 100, "web")},
		"another does": {worker, share("v2", 1, "web")},
		"not known":    {{Version: "v1", Weight: 100}},
	} {
		in.install(&State{Apps: []App{{ID: "app-1", Name: "shop", Versions: versions}}})
		answered := make(chan int, 1)
		go func() {
			code, _ := get(t, client(t), in.url, testHost)
			answered <- code
		}()
		wait.For(t, name+": a request waits", func() bool { return in.status().Held == 1 })
		in.install(&State{Apps: []App{{ID: "app-1", Name: "shop", Versions: []Share{worker}}}}) // ends the wait
		if code := wait.Receive(t, "the answer", answered); code != 503 {
			t.Errorf("%s: %d", name, code)
		}
	}
}

// A connection to a port whose service does not exist ends at once.
func TestTCPNoService(t *testing.T) {
	cfg, addr := tcpConfig(t, lineEcho(t, false), TCPRoute{})
	cfg.HoldTimeout = 2 * wait.Limit
	st, err := loadState(cfg.TableFile)
	if err != nil {
		t.Fatal(err)
	}
	st.Sandboxes, st.Apps[0].Versions[0].Services = nil, []string{}
	if err := saveState(cfg.TableFile, st); err != nil {
		t.Fatal(err)
	}
	start(t, cfg)
	_, say := dialTCP(t, addr)
	if got := say(""); got != "EOF" {
		t.Errorf("%q", got)
	}
}
