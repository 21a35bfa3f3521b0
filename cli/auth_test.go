package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/cli/exit"
)

func TestAuthGenerate(t *testing.T) {
	newFake(t)
	file := filepath.Join(t.TempDir(), "alice.yaml")
	ok(t, "auth", "generate", "--name", "alice", "--role", "deployer", "--file", file)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(b), "current_cluster: runtime.example.com", "server: runtime.example.com:7443", "identity: alice", "key: KEY", "ca: CA")
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", st.Mode(), err)
	}
	if r := run(t, false, "", "auth", "generate", "--name", "alice", "--file", file); r.code != exit.Failed {
		t.Errorf("over an existing file: %+v", r)
	}
	ok(t, "auth", "generate", "--name", "alice")
	contains(t, ok(t, "auth", "generate", "--name", "bob", "--as", "prod", "--json"), `"cluster": "prod"`)
	b, err = os.ReadFile(filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "runtime", "clientconfig.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(b), "alice:", "bob:", "prod:")
}

func TestAuthRevoke(t *testing.T) {
	newFake(t)
	contains(t, ok(t, "auth", "list", "--json"), "[]")
	var made struct{ Serial string }
	if err := json.Unmarshal([]byte(ok(t, "auth", "generate", "--name", "alice", "--role", "deployer", "--json")), &made); err != nil {
		t.Fatal(err)
	}
	ok(t, "auth", "generate", "--name", "bob")
	contains(t, ok(t, "auth", "list"), made.Serial, "alice", "bob", "deployer", "until 2030-01-02")
	contains(t, ok(t, "auth", "revoke", made.Serial), "revoked alice "+made.Serial)
	contains(t, ok(t, "auth", "list"), "revoked "+time.Now().Format(time.DateOnly), "until 2030-01-02")
	contains(t, ok(t, "auth", "revoke", "bob"), "revoked bob ", "every certificate of bob that is not recorded")
	if out := ok(t, "auth", "list"); strings.Contains(out, "until") || !strings.Contains(out, "(not recorded)") {
		t.Errorf("after both were revoked:\n%s", out)
	}
	if r := run(t, false, "", "auth", "revoke", "carol"); r.code != 0 || !strings.Contains(r.err, "no certificate of carol is recorded") {
		t.Errorf("an identity that has none: %+v", r)
	}
	contains(t, ok(t, "auth", "revoke", "bob", "--json"), `"revoked_at"`)
}
