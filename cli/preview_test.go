package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
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
