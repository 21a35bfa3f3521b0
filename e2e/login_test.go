package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/oidctest"
	"miren.dev/runtime/testsupport/wait"
)

// TestLogin runs the examples of "API keys" in docs/cli.md and those of docs/ci.md, from a
// client that has nothing of the server but a key, or a token, and the certificate of its
// authority.
func TestLogin(t *testing.T) {
	t.Parallel()
	need.Tools(t, "bash")
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	provider, rules := oidctest.New(t), filepath.Join(t.TempDir(), "trust.yaml")
	write(t, rules, "- {issuer: "+provider.URL+", audience: runtime, claims: {repository: acme/shop}, project: default, roles: [viewer]}\n")
	s := own(t, "login", "--api-address", address, "--api-tls=true", "--api-trust-file", rules)
	s.script(t, "", documented(t, "../docs/cli.md", "r key create ci"))
	key := strings.TrimSpace(s.r(t, "", "key", "create", "laptop", "--role", "admin"))
	dir := t.TempDir()
	ca, err := os.ReadFile(filepath.Join(s.state, "pki", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "ca.pem"), string(ca))
	write(t, filepath.Join(dir, "key"), key+"\n")
	client := []string{"RUNTIME_STATE_DIR=", "XDG_CONFIG_HOME=" + filepath.Join(dir, "config"), "SERVER=" + address}
	documents := documented(t, "../docs/cli.md", "r auth login")
	out := s.script(t, dir, documents, client...)
	for _, want := range []string{"key:default/laptop", "admin@default", "removed prod"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the output:\n%s", want, strings.ReplaceAll(out, key, "KEY"))
		}
	}
	// It works for streams, and no more once the key is deleted.
	out += s.script(t, dir, "r auth login https://$SERVER --ca ca.pem --as prod < key; r run -l sh 'echo hello'", client...)
	s.r(t, "", "key", "delete", "laptop")
	out += s.script(t, dir, "! r key list", client...)
	if !strings.Contains(out, "hello\n") || !strings.Contains(out, "API key") {
		t.Errorf("with the key, and after its end:\n%s", strings.ReplaceAll(out, key, "KEY"))
	}
	token := provider.Token(t, "runtime", time.Minute, map[string]any{"sub": "repo:acme/shop", "repository": "acme/shop"})
	write(t, filepath.Join(dir, "token"), token+"\n")
	if out := s.script(t, dir, documented(t, "../docs/ci.md", "r auth login")+"\nr app list", client...); !strings.Contains(out, "key:default/token-") || strings.Contains(out, token) {
		t.Errorf("by a token of CI:\n%s", strings.ReplaceAll(out, token, "TOKEN"))
	}
	log, err := os.ReadFile(filepath.Join(s.state, "logs", "server.log"))
	if err != nil {
		t.Fatal(err)
	}
	if audit := s.r(t, "", "audit", "list", "--limit", "1000", "--json"); strings.Contains(string(log)+audit+out, key[4:]) {
		t.Error("the log, the audit log or the output has the key")
	}
	write(t, rules, "- {issuer: "+provider.URL+", audience: runtime, project: default, roles: [viewer]}\n")
	wait.NoError(t, "r doctor names the rule and what mends it", func() error {
		if out := s.try(t, "", "doctor").Stdout; !strings.Contains(out, "rule 1, of the issuer") || !strings.Contains(out, "has no claims") || !strings.Contains(out, "`sudoedit "+rules+"`") {
			return errors.New(out)
		}
		return nil
	})
}
