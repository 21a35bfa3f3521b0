package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc/identity"
)

// credentials writes certificate, key and authority of a client to files.
func credentials(t *testing.T, ca *identity.Authority, name string, ttl time.Duration) (cert, key, authority string) {
	t.Helper()
	pair, err := ca.IssueClient(name, []string{"viewer"}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for file, b := range map[string][]byte{"cert.pem": pair.Certificate, "key.pem": pair.Key, "ca.pem": ca.CA()} {
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
}

func configFile(t *testing.T) string {
	t.Helper()
	path, err := clientconfig.Path()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// elsewhere gives the client no server on this machine.
func elsewhere(t *testing.T) {
	for _, k := range []string{"RUNTIME_SERVER", "RUNTIME_CLUSTER"} {
		t.Setenv(k, "")
	}
	t.Setenv("RUNTIME_STATE_DIR", "")
}

func TestClustersAreAddedUsedListedAndRemoved(t *testing.T) {
	f := newFake(t)
	f.shop()
	address, ca := f.serveTLS()
	elsewhere(t)
	cert, key, authority := credentials(t, ca, "alice", time.Hour)

	if out := ok(t, "cluster", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("no clusters: %s", out)
	}
	out := ok(t, "cluster", "add", "prod", address, "--certificate", cert, "--key", key, "--ca", authority, "-p", "default")
	contains(t, out, "added prod at "+address, "instance abcd1234", "valid until")
	if st, err := os.Stat(configFile(t)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the configuration has mode %v, %v", st.Mode(), err)
	}
	contains(t, ok(t, "app", "list", "--cluster", "prod"), "shop")
	contains(t, ok(t, "cluster", "use", "prod"), address)
	contains(t, ok(t, "app", "list"), "shop")
	contains(t, ok(t, "server", "status"), "abcd1234")

	ok(t, "cluster", "add", "spare", address, "--identity", "alice", "--ca", authority)
	var list []struct {
		Name, Server, Identity, Project string
		Current                         bool
		Expires                         time.Time `json:"certificate_expires_at"`
		Error                           string
	}
	if err := json.Unmarshal([]byte(ok(t, "cluster", "list", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Name != "prod" || !list[0].Current || list[0].Project != "default" || list[1].Current ||
		list[1].Identity != "alice" || time.Until(list[1].Expires) > time.Hour || list[0].Error+list[1].Error != "" {
		t.Errorf("clusters %+v", list)
	}
	if b := ok(t, "cluster", "list", "--json"); strings.Contains(b, "PRIVATE") {
		t.Error("the list shows a key")
	}
	tty := run(t, true, "", "cluster", "list")
	contains(t, tty.out, "CLUSTER", "VALID UNTIL", "*", address)
	contains(t, ok(t, "__complete", "cluster", "use", ""), "prod", "spare")
	contains(t, ok(t, "__complete", "app", "list", "--cluster", ""), "prod", "spare")

	r := run(t, false, "", "cluster", "remove", "prod")
	contains(t, r.out+r.err, "removed prod", "server of this machine")
	cfg, err := clientconfig.Load(configFile(t))
	if err != nil || cfg.CurrentCluster != "" || cfg.Identities["alice"] == nil {
		t.Errorf("after the removal: %+v %v; another cluster uses the identity", cfg, err)
	}
	ok(t, "cluster", "use", "spare")
	ok(t, "cluster", "use", "--none")
	ok(t, "cluster", "remove", "spare")
	if cfg, err = clientconfig.Load(configFile(t)); err != nil || len(cfg.Clusters) != 0 || len(cfg.Identities) != 0 || cfg.CurrentCluster != "" {
		t.Errorf("after the last removal: %+v %v", cfg, err)
	}
}

func TestClusterIsAddedFromAGeneratedFile(t *testing.T) {
	f := newFake(t)
	address, ca := f.serveTLS()
	elsewhere(t)
	cert, key, authority := credentials(t, ca, "alice", time.Hour)
	file := filepath.Join(filepath.Dir(cert), "alice.yaml")
	// Paths in it are relative to it, and the files are copied.
	text := "current_cluster: there\nclusters:\n  there: {server: \"" + address + "\", identity: alice, ca_file: ca.pem}\n" +
		"identities:\n  alice: {certificate_file: cert.pem, key_file: key.pem}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	contains(t, ok(t, "cluster", "add", "prod", "--from", file, "--use", "--json"), `"checked": true`, `"current": true`, `"server_version": "1.2.3"`)
	for _, gone := range []string{cert, key, authority, file} {
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	ok(t, "server", "status")
}

func TestClusterErrorsSayWhatToDo(t *testing.T) {
	f := newFake(t)
	address, ca := f.serveTLS()
	elsewhere(t)
	cert, key, authority := credentials(t, ca, "alice", time.Hour)
	other, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	foreignCert, foreignKey, foreignCA := credentials(t, other, "mallory", time.Hour)
	files := []string{"--certificate", cert, "--key", key, "--ca", authority}
	add := func(more ...string) []string { return append([]string{"cluster", "add"}, more...) }
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"no address", add("prod"), exit.Usage, []string{"HOST:PORT", "--from"}},
		{"no port", append(add("prod", "127.0.0.1"), files...), exit.Failed, []string{"host:port"}},
		{"no certificate", add("prod", address), exit.Usage, []string{"--from", "r auth generate"}},
		{"a certificate without a key", add("prod", address, "--certificate", cert), exit.Usage, []string{"key"}},
		{"a key that is no PEM", add("prod", address, "--certificate", cert, "--key", "/etc/hostname"), exit.Failed, []string{"PEM", "openssl"}},
		{"a file that does not exist", add("prod", "--from", "/nowhere"), exit.Failed, []string{"/nowhere", "r auth generate"}},
		{"an impossible name", append(add("a b", address), files...), exit.Usage, []string{`"a b"`}},
		{"an unknown identity", add("prod", address, "--identity", "bob"), exit.Failed, []string{`"bob"`, "--certificate"}},
		{"the certificate of another authority", add("prod", address, "--certificate", foreignCert, "--key", foreignKey, "--ca", authority), exit.Failed,
			[]string{"certificate", "r auth generate", "nothing was added"}},
		{"another server", add("prod", address, "--certificate", cert, "--key", key, "--ca", foreignCA), exit.Failed, []string{"not the one", "nothing was added"}},
		{"no server", append(add("prod", "127.0.0.1:1"), files...), exit.Failed, []string{"127.0.0.1:1", "--no-check"}},
		{"an unknown cluster", []string{"cluster", "use", "prod"}, exit.Failed, []string{"r cluster add"}},
		{"nothing to use", []string{"cluster", "use"}, exit.Usage, []string{"--none"}},
		{"nothing to remove", []string{"cluster", "remove", "prod"}, exit.Failed, []string{"r cluster add"}},
	} {
		r := run(t, false, "", c.args...)
		if r.code != c.code {
			t.Errorf("%s: exit code %d, want %d: %s", c.name, r.code, c.code, r.err)
		}
		for _, want := range c.want {
			if !strings.Contains(r.err, want) {
				t.Errorf("%s: %q is missing in %s", c.name, want, r.err)
			}
		}
		if _, err := os.Stat(configFile(t)); !os.IsNotExist(err) {
			t.Fatalf("%s: a configuration was written (%v)", c.name, err)
		}
	}

	contains(t, ok(t, append(add("down", "127.0.0.1:1", "--no-check"), files...)...), "not checked")
	r := run(t, false, "", append(add("down", address), files...)...)
	contains(t, r.err, "has a cluster", "--replace")
	if r.code != exit.Failed {
		t.Errorf("a second cluster of a name: exit code %d", r.code)
	}
	ok(t, append(add("down", address, "--replace"), files...)...)
	ok(t, "server", "status", "--cluster", "down")
	r = run(t, false, "", "cluster", "use", "dwon")
	contains(t, r.err, `did you mean "down"`)
}

func TestAServerOfTheNetworkIsNamed(t *testing.T) {
	newFake(t)
	elsewhere(t)
	state := t.TempDir()
	r := run(t, false, "", "app", "list", "--state-dir", state)
	contains(t, r.err, "no server is running for "+state, "r cluster add")
	var doc exit.Document
	r = run(t, false, "", "cluster", "use", "nowhere", "--json")
	if err := json.Unmarshal([]byte(r.err), &doc); err != nil || doc.Error.Class != errs.NotFound {
		t.Errorf("error as JSON: %v %s", err, r.err)
	}
}
