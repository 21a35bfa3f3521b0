package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

// appnetMain is an app of two services. The worker answers with its address, web with what
// it gets from the host in the query, by name: the addresses, and each one's answer.
const appnetMain = `package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	client := http.Client{Timeout: 3 * time.Second}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if os.Getenv("RUNTIME_SERVICE") == "worker" {
			fmt.Fprint(w, "worker at ", r.Context().Value(http.LocalAddrContextKey))
			return
		}
		host := r.URL.Query().Get("host")
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		addresses, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			fmt.Fprint(w, "failed: ", err)
			return
		}
		slices.Sort(addresses)
		for _, a := range addresses {
			resp, err := client.Get("http://" + net.JoinHostPort(a, "9000") + "/")
			if err != nil {
				fmt.Fprintln(w, "failed:", err)
				continue
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			fmt.Fprintln(w, strings.TrimSpace(string(text)))
		}
	})
	http.ListenAndServe(":"+os.Getenv("PORT"), nil)
}
`

// TestAppNetwork deploys an app whose services find each other by name, and an app of
// another project, which reaches neither its names nor its addresses. The names are answered all
// the time while the server is killed, is dead, and starts again.
func TestAppNetwork(t *testing.T) {
	t.Parallel()
	s := own(t, "appnet")
	g := newGuide(t, s, "network")
	g.file("main.go", appnetMain)
	g.file("go.mod", "module shop\n\ngo 1.25\n")
	g.file("app.toml", "name = \"shop\"\n\n[network]\negress = \"none\"\n\n[services.web]\nport = 8080\n\n[services.worker]\ncommand = \"shop\"\nport = 9000\n")
	g.inProject("appnet")
	ask := func(app, host string) []string {
		t.Helper()
		code, body, err := s.get(app, "/?host="+host)
		if err != nil || code != 200 {
			t.Fatalf("%s asks for %s: %d %q, %v", app, host, code, body, err)
		}
		lines := strings.Split(strings.TrimSpace(body), "\n")
		slices.Sort(lines)
		return slices.Compact(lines)
	}
	workers := func(n int) (list []string) {
		t.Helper()
		wait.For(t, fmt.Sprintf("web reaches %d workers by their name", n), func() bool {
			list = ask("shop", "worker.shop.internal")
			return len(list) == n && !slices.ContainsFunc(list, func(l string) bool { return !strings.HasPrefix(l, "worker at ") })
		}, wait.State(func() any { return list }))
		return list
	}
	g.run("r deploy")
	workers(1)
	if got := ask("shop", "none.shop.internal"); !strings.Contains(got[0], "no such host") {
		t.Errorf("a service that does not exist: %q", got)
	}
	g.run("r app scale worker=2")
	both := workers(2)
	address, _, _ := strings.Cut(strings.TrimPrefix(both[0], "worker at "), ":")

	asked, stop := make(chan int), make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				asked <- n
				return
			default:
			}
			code, body, err := s.get("shop", "/?host=worker.shop.internal")
			if err != nil || code != 200 || strings.Count(body, "worker at ") != 2 {
				t.Errorf("request %d while the server is killed and starts: %d %q, %v", n, code, body, err)
			}
		}
	}()
	kill(t, s.pid(t, "server"))
	for range 20 {
		workers(2)
	}
	if got := ask("shop", "none.shop.internal"); !strings.Contains(got[0], "no such host") {
		t.Errorf("without a server, a service that does not exist: %q", got)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	close(stop)
	if n := <-asked; n < 20 {
		t.Errorf("only %d requests", n)
	}

	// Another project. Its policy lets nothing out, and it can deploy nevertheless.
	write(t, g.dir+"/other.yaml", "kind: project\nname: appnet-other\n")
	s.r(t, g.dir, "entity", "put", "other.yaml")
	s.r(t, "", "policy", "set", "--project", "appnet-other", "--max-egress", "none")
	write(t, g.dir+"/app.toml", "name = \"stranger\"\n\n[services.web]\nport = 8080\n")
	s.r(t, g.dir, "deploy", "--project", "appnet-other")
	if got := ask("stranger", "worker.shop.internal"); !strings.Contains(got[0], "no such host") {
		t.Errorf("another project asks for the name: %q", got)
	}
	if got := ask("stranger", address); !strings.HasPrefix(got[0], "failed:") {
		t.Errorf("another project connects to the address %s: %q", address, got)
	}
	if out := s.r(t, "", "sandbox", "list", "--project", "appnet-other", "--json"); !strings.Contains(out, `"mode": "none"`) {
		t.Errorf("the network of an app of a project that lets nothing out: %s", out)
	}
	for project, app := range map[string]string{"appnet": "shop", "appnet-other": "stranger"} {
		s.r(t, "", "app", "delete", app, "--yes", "--project", project)
	}
}
