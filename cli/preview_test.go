package cli_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
)

// TestPreviews: tokens are printed by the commands that make them, and are in no
// list.
func TestPreviews(t *testing.T) {
	f := newFake(t)
	f.shop()
	const host = "http://3000-sbabcdef0123456789.localhost/"
	if out := ok(t, "sandbox", "preview", "sb-abc", "3000", "--public"); out != host+"\n" {
		t.Errorf("public: %q", out)
	}
	var made struct {
		URL, Token string
		Preview    struct{ ID string }
	}
	create := func(args ...string) {
		t.Helper()
		if err := json.Unmarshal([]byte(ok(t, append([]string{"sandbox", "preview", "sb-abc", "--json"}, args...)...)), &made); err != nil {
			t.Fatal(err)
		}
	}
	create("3000", "--ttl", "1h")
	first := made
	create("3000", "--ttl", "2h")
	if made != first || made.URL != host || made.Token == "" {
		t.Errorf("%+v, then %+v", first, made)
	}
	if out := ok(t, "sandbox", "preview", "sb-abc", "3000"); out != "url   "+host+"\ntoken "+made.Token+"\n" {
		t.Errorf("with a token: %q", out)
	}
	link := ok(t, "preview", "url", "3000-sbabcdef0123456789", "--ttl", "10m")
	if !strings.HasPrefix(link, host+"?preview_token=") || strings.Contains(link, made.Token) {
		t.Errorf("link %q", link)
	}
	create("all")
	if made.URL != "http://PORT-sbabcdef0123456789.localhost/" {
		t.Errorf("all ports: %+v", made)
	}
	list := ok(t, "preview", "list", "--json")
	if contains(t, list, "3000-sbabcdef0123456789", "0-sbabcdef0123456789"); strings.Contains(list, first.Token) || strings.Contains(list, made.Token) {
		t.Error("a list has a token")
	}
	contains(t, ok(t, "preview", "delete", "3000-sbabcdef0123456789", made.Preview.ID), "deleted 3000-", "deleted 0-")
	create("3000")
	if made.Token == first.Token {
		t.Error("a new preview has the token of the deleted one")
	}
	for _, args := range [][]string{{"sb-abc", "0"}, {"sb-abc", "65536"}, {"sb-abc", "x"}, {"sb-abc"}, {"sb-abc", "80", "--ttl", "1ms"}} {
		if r := run(t, false, "", append([]string{"sandbox", "preview"}, args...)...); r.code != exit.Usage {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// TestAppPreviews: `r deploy --preview` asks for a preview, and the previews of apps are in the lists and details beside those
// of ports, and can be promoted and deleted.
func TestAppPreviews(t *testing.T) {
	f := newFake(t)
	a := f.shop()
	f.script = play(app.DeploymentPhaseSucceeded, nil)
	dir := sourceFolder(t, "shop")
	ok(t, "deploy", "--dir", dir, "--app", "shop", "--preview", "pr-12")
	if p := f.deploys[0].Preview; p == nil || p.Name != "pr-12" || p.TTL != 72*time.Hour || p.Host != "" {
		t.Errorf("request %+v", p)
	}
	ok(t, "deploy", "--dir", dir, "--app", "shop", "--preview", "pr-12", "--ttl", "2h", "--host", "try.example.com", "--detach")
	if p := f.deploys[1].Preview; p.TTL != 2*time.Hour || p.Host != "try.example.com" {
		t.Errorf("request %+v", p)
	}
	for _, args := range [][]string{
		{"--ttl", "2h"}, {"--host", "try.example.com"}, {"--preview", "PR"}, {"--preview", ""}, {"--preview", "a", "--ttl", "1s"},
		{"--preview", "a", "--ttl", "9000h"}, {"--preview", "a", "--canary", "10"},
	} {
		if r := run(t, false, "", append([]string{"deploy", "--dir", dir}, args...)...); r.code != exit.Usage {
			t.Errorf("%q: %+v", args, r)
		}
	}
	end := time.Now().Add(time.Hour)
	a.Status.SetPreview(app.TrafficShare{Version: "ver-1", Weight: 100, Host: "pr-12--shop.localhost", Preview: "pr-12", ExpiresAt: &end})
	if err := entity.UpdateStatus(t.Context(), f.store, a); err != nil {
		t.Fatal(err)
	}
	r := app.NewRoute()
	r.Spec = app.RouteSpec{Host: "pr-12--shop.localhost", Path: "/", Key: "pr-12--shop.localhost/", App: a.GetID(), Service: "web", Preview: "pr-12"}
	f.create(r)
	ok(t, "sandbox", "preview", "sb-abc", "3000")
	contains(t, ok(t, "preview", "list"), "pr-12", "shop v1", "pr-12--shop.localhost", "3000-sbabcdef0123456789")
	contains(t, ok(t, "preview", "list", "--json"), `"kind": "app_preview"`, `"app": "shop"`, `"version": "v1"`, `"kind": "preview"`)
	contains(t, ok(t, "app", "status", "shop"), "v2 100%, v1 preview pr-12", "pr-12 at pr-12--shop.localhost, ends in ")
	if out := ok(t, "app", "list"); !strings.Contains(out, "shop.example.com") || strings.Contains(out, "pr-12--") {
		t.Errorf("hosts of the app: %s", out)
	}
	ok(t, "app", "promote", "shop", "--preview", "pr-12")
	contains(t, strings.Join(f.calls, "\n"), "promote shop pr-12")
	if r := run(t, false, "", "preview", "delete", "pr-13", "--app", "shop"); r.code != exit.Failed || !strings.Contains(r.err, "r preview list") {
		t.Errorf("no such preview: %+v", r)
	}
	contains(t, ok(t, "preview", "delete", "pr-12", "--app", "shop"), "deleted pr-12 of shop")
	if out := ok(t, "preview", "list", "--json"); strings.Contains(out, "pr-12") {
		t.Errorf("deleted: %s", out)
	}
}
