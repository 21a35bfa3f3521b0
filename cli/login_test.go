package cli_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/upgrade"
)

// TestLogin: the key is kept for its owner only and shown nowhere; commands use it.
func TestLogin(t *testing.T) {
	f := newFake(t)
	const key = "e2b_00112233445566778899"
	https := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !upgrade.Wanted(r) || r.Header.Get("Authorization") != "Bearer "+key {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		nc, err := upgrade.Accept(w)
		if err == nil {
			err = f.rpc.Adopt(nc, rpc.Identity{Name: "key:default/ci", Roles: []string{"viewer@default"}, How: rpc.HowKey, Key: "k"})
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(https.Close)
	t.Setenv("RUNTIME_SERVER", "")
	dir := t.TempDir()
	ca, file := filepath.Join(dir, "ca.pem"), filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "runtime", "clientconfig.yaml")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: https.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		stdin string
		args  []string
		want  string
	}{
		{"e2b_wrong\n", []string{https.URL, "--ca", ca}, "nothing was changed"},
		{key, []string{https.URL}, "--ca FILE"},
		{"", []string{https.URL, "--ca", ca}, "r key create"},
		{key, []string{"http://runtime.example.com"}, "read on the way"},
	} {
		r := run(t, false, c.stdin, append([]string{"auth", "login"}, c.args...)...)
		if r.code == 0 || !strings.Contains(r.err, c.want) || strings.Contains(r.out+r.err, key) {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a login that failed wrote the configuration")
	}
	in := run(t, false, key+"\n", "auth", "login", https.URL, "--ca", ca, "--as", "prod")
	if in.code != 0 || !strings.Contains(in.out, "key:default/ci") {
		t.Fatalf("%+v", in)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the configuration: %v, %v", st, err)
	}
	shown := in.out + in.err + ok(t, "auth", "status") + ok(t, "auth", "status", "--json") + ok(t, "cluster", "list") + ok(t, "cluster", "list", "--json")
	contains(t, shown, "prod", https.URL, "viewer@default", `"project": "default"`)
	if strings.Contains(shown, key) {
		t.Errorf("the key is shown: %s", shown)
	}
	ok(t, "app", "list")
	if r := run(t, false, "", "key", "create", "more"); r.code == 0 || !strings.Contains(r.err, "key:default/ci may not call") {
		t.Errorf("a call for which the key has no role: %+v", r)
	}
	contains(t, ok(t, "auth", "logout"), "removed prod")
	if b, err := os.ReadFile(file); err != nil || strings.Contains(string(b), key) {
		t.Errorf("the configuration after the logout: %s, %v", b, err)
	}
	if r := run(t, false, "", "auth", "logout", "prod"); r.code == 0 || r.code == exit.Usage {
		t.Errorf("a logout of nothing: %+v", r)
	}
}
