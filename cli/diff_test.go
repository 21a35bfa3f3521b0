package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/schema"
)

func TestDiff(t *testing.T) {
	f := newFake(t)
	a := &app.App{Meta: schema.Meta{ID: "app-d", Name: "notes"}}
	f.create(a)
	if r := run(t, false, "", "app", "diff", "--app", "notes"); r.code != exit.Failed || !strings.Contains(r.err, "nothing to compare") {
		t.Errorf("without versions: %+v", r)
	}
	version := func(n int64, port int64, env map[string]string, command ...string) {
		v := &app.AppVersion{Meta: schema.Meta{ID: schema.ID("ver-d" + string(rune('0'+n))), Name: "notes-v" + string(rune('0'+n))}}
		v.Spec = app.AppVersionSpec{App: id.App(a.ID), Number: n, Image: "same", Env: env,
			Services: []app.Service{{Name: "web", Port: &port, Command: command}},
		}
		v.Spec.Services[0].SetDefaults()
		f.create(v)
	}
	version(1, 8080, map[string]string{"OLD": "1", "BOTH": "a=b"}, "serve")
	version(2, 9090, map[string]string{"NEW": "x y", "BOTH": "a=b"}, "serve", "--fast")
	version(3, 9090, map[string]string{"NEW": "x y", "BOTH": "a=b"}, "serve", "--fast")
	out := ok(t, "app", "diff", "v1", "2", "--app", "notes")
	if out != `+ env.NEW = "x y"
- env.OLD = "1"
~ services.web.command = ["serve"] → ["serve","--fast"]
~ services.web.port = 8080 → 9090
` {
		t.Errorf("v1 to v2:\n%s", out)
	}
	if r := run(t, false, "", "app", "diff", "--app", "notes"); r.code != 0 || r.out != "" || !strings.Contains(r.err, "v2 and v3 have the same") {
		t.Errorf("the newest two: %+v", r)
	}
	var doc struct {
		From, To    string
		Differences []map[string]string
	}
	if err := json.Unmarshal([]byte(ok(t, "app", "diff", "v1", "--app", "notes", "--json")), &doc); err != nil || doc.From != "v1" || doc.To != "v3" || len(doc.Differences) != 4 {
		t.Errorf("--json: %+v, %v", doc, err)
	}
	if r := run(t, false, "", "app", "diff", "v9", "--app", "notes"); r.code == 0 || !strings.Contains(r.err, "has no version v9") {
		t.Errorf("v9: %+v", r)
	}
}
