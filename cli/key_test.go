package cli_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
)

// TestKeys: a key is printed once, alone in a pipe, and in no list.
func TestKeys(t *testing.T) {
	newFake(t)
	shape := regexp.MustCompile(`^e2b_[0-9a-f]{64}\n$`)
	out := ok(t, "key", "create", "ci")
	if !shape.MatchString(out) {
		t.Fatalf("%q", out)
	}
	var made struct{ Name, Key string }
	if err := json.Unmarshal([]byte(ok(t, "key", "create", "deploys", "--role", "deployer", "--expires", "1h", "--rate", "5", "--json")), &made); err != nil {
		t.Fatal(err)
	}
	if made.Name != "deploys" || !shape.MatchString(made.Key+"\n") {
		t.Errorf("%+v", made)
	}
	list := ok(t, "key", "list") + ok(t, "key", "list", "--json") + ok(t, "entity", "get", "api_key", "ci", "--json")
	contains(t, list, "ci", "agent@default", "deploys", "deployer@default", "never", "[secret]", "5/s")
	for _, secret := range []string{strings.TrimSpace(out), made.Key} {
		if strings.Contains(list, secret[4:]) {
			t.Error("a list has the key")
		}
	}
	ok(t, "key", "create", "bounded", "--max-sandboxes", "2", "--max-executions", "0")
	contains(t, ok(t, "key", "show", "bounded"), "agent@default", "sandboxes\t0 of 2 in use", "executions\t0 of 0 in use")
	contains(t, ok(t, "key", "show", "ci"), "sandboxes\t0 of unlimited in use")
	contains(t, ok(t, "key", "show", "bounded", "--json"), `"max_sandboxes": 2`, `"used": 0`, "[secret]")
	contains(t, ok(t, "key", "list"), "bounded\tagent@default\tvalid until it is deleted\t\t2\t0\tnever")
	for _, args := range [][]string{{"create", "Bad_Name"}, {"create", "a", "--max-sandboxes", "-1"}, {"create", "a", "--expires", "1s"}, {"create", "a", "--rate", "-1"}} {
		if r := run(t, false, "", append([]string{"key"}, args...)...); r.code != exit.Usage {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := run(t, false, "", "key", "create", "a", "--role", "agent@shop"); r.code == 0 || !strings.Contains(r.err, "agent@shop") {
		t.Errorf("%+v", r)
	}
	contains(t, ok(t, "key", "delete", "ci"), "deleted the key ci")
	if r := run(t, false, "", "key", "delete", "ci"); r.code == 0 {
		t.Errorf("%+v", r)
	}
}
