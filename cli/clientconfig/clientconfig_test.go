package clientconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc/identity"
)

// newHost writes a client configuration, and a state directory with an instance.
func newHost(t *testing.T, config string) (state string) {
	t.Helper()
	xdg := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", xdg)
	for _, k := range []string{"RUNTIME_SERVER", "RUNTIME_CLUSTER", "RUNTIME_STATE_DIR", "RUNTIME_RUN_DIR"} {
		t.Setenv(k, "")
	}
	if config != "" {
		if err := os.MkdirAll(filepath.Join(xdg, "runtime"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(xdg, "runtime", "clientconfig.yaml"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	state = t.TempDir()
	if err := os.WriteFile(filepath.Join(state, "instance-id"), []byte("abcd1234\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return state
}

const two = `
current_cluster: prod
clusters:
  prod: {server: "prod.example.com:7443", project: team}
  local: {server: "unix:///run/x.sock"}
`

func TestResolve(t *testing.T) {
	state := newHost(t, two)
	for _, c := range []struct {
		name string
		env  map[string]string
		o    Options
		want string
	}{
		{"the current cluster", nil, Options{}, "prod.example.com:7443"},
		{"a named cluster", nil, Options{Cluster: "local"}, "unix:///run/x.sock"},
		{"a cluster of the environment", map[string]string{"RUNTIME_CLUSTER": "local"}, Options{}, "unix:///run/x.sock"},
		{"a server", nil, Options{Server: "h:1"}, "h:1"},
		{"a server over a cluster", nil, Options{Server: "h:1", Cluster: "prod"}, "h:1"},
		{"a socket without scheme", nil, Options{Server: "/run/y.sock"}, "unix:///run/y.sock"},
		{"the environment's server", map[string]string{"RUNTIME_SERVER": "e:1"}, Options{}, "e:1"},
		{"a flag over the environment", map[string]string{"RUNTIME_SERVER": "e:1"}, Options{Cluster: "local"}, "unix:///run/x.sock"},
		{"a state directory over the current cluster", nil, Options{StateDir: state, RunDir: "/run/rt"}, "unix:///run/rt/abcd1234/server.sock"},
		{"the same from the environment", map[string]string{"RUNTIME_STATE_DIR": state}, Options{}, "unix:///run/runtime/abcd1234/server.sock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			got, err := Resolve(c.o.Env())
			if err != nil {
				t.Fatal(err)
			}
			if got.Address != c.want {
				t.Errorf("got %s, want %s", got.Address, c.want)
			}
			if strings.HasPrefix(c.want, "unix:") != (got.TLS == nil) {
				t.Errorf("TLS of %s: %v", got.Address, got.TLS)
			}
		})
	}
}

func TestResolveErrors(t *testing.T) {
	newHost(t, two)
	for _, c := range []struct {
		o     Options
		class errs.Class
		want  string
	}{
		{Options{Cluster: "prd"}, errs.NotFound, `"prod"`},
		{Options{Server: "nowhere"}, errs.InvalidArgument, "host:port"},
		{Options{Server: "unix://relative"}, errs.InvalidArgument, "absolute"},
		{Options{StateDir: t.TempDir()}, errs.Unavailable, "r server start"},
	} {
		_, err := Resolve(c.o)
		if !errs.Is(err, c.class) || !strings.Contains(err.Error()+errs.HintOf(err), c.want) {
			t.Errorf("%+v: %v (%s)", c.o, err, errs.HintOf(err))
		}
	}
}

func TestConfigMistakes(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"clusters:\n  a: {sever: h:1}\n", `:2: unknown key "sever"`},
		{"curent_cluster: a\n", "current_cluster"},
		{"clusters:\n  a: {}\n", "no server"},
		{"clusters:\n  a: {server: h:1, identity: bob}\n", `"bob"`},
		{"current_cluster: b\n", `"b"`},
		{"clusters: [1]\n", "keys and values"},
		{"clusters: {", "yaml"},
	} {
		newHost(t, c.text)
		_, err := Resolve(Options{})
		if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error()+errs.HintOf(err), c.want) {
			t.Errorf("%q: %v (%s)", c.text, err, errs.HintOf(err))
		}
	}
}

// TestIdentity makes an identity of a real authority, saves it and reads it again.
func TestIdentity(t *testing.T) {
	newHost(t, "")
	ca, err := identity.Open(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	issued, err := ca.IssueClient("alice", []string{"admin"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	path, err := Path()
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Put("prod", &Cluster{Server: "h:7443", Identity: "alice", CA: string(ca.CA())}, "alice",
		&Identity{Certificate: string(issued.Certificate), Key: string(issued.Key)}, true)
	if err := cfg.Save(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", st.Mode(), err)
	}
	got, err := Resolve(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.TLS.Certificates) != 1 || got.TLS.RootCAs == nil || got.TLS.ServerName != "h" {
		t.Errorf("TLS %+v", got.TLS)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Resolve(Options{}); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(errs.HintOf(err), "chmod 600") {
		t.Errorf("a key that others may read: %v", err)
	}
}

func TestClustersShareIdentitiesOnlyOnPurpose(t *testing.T) {
	c := &Config{path: filepath.Join(t.TempDir(), "c.yaml")}
	first, second := &Identity{Certificate: "1"}, &Identity{Certificate: "2"}
	c.Put("a", &Cluster{Server: "a:1"}, "alice", first, true)
	c.Put("b", &Cluster{Server: "b:1"}, "alice", second, false)
	if c.Identities[c.Clusters["a"].Identity] != first || c.Identities[c.Clusters["b"].Identity] != second {
		t.Fatalf("one identity of two servers replaced the other: %+v %+v", c.Clusters, c.Identities)
	}
	c.Put("c", &Cluster{Server: "c:1", Identity: "alice"}, "", nil, false) // on purpose
	for _, step := range []struct{ remove, identity string }{{"a", ""}, {"c", "alice"}, {"b", "alice@b"}} {
		if identity, err := c.Remove(step.remove); err != nil || identity != step.identity {
			t.Errorf("removing %s removed the identity %q, %v; want %q", step.remove, identity, err, step.identity)
		}
	}
	if c.CurrentCluster != "" || len(c.Clusters)+len(c.Identities) != 0 {
		t.Errorf("left: %+v", c)
	}
	if _, err := c.Remove("a"); !errs.Is(err, errs.NotFound) {
		t.Errorf("removing a cluster twice: %v", err)
	}
}

func TestReplacedClusterKeepsWhatOthersUse(t *testing.T) {
	c := &Config{path: filepath.Join(t.TempDir(), "c.yaml")}
	c.Put("a", &Cluster{Server: "a:1"}, "alice", &Identity{Certificate: "1"}, true)
	c.Put("a", &Cluster{Server: "a:2", Identity: "alice"}, "", nil, false)
	if c.Clusters["a"].Server != "a:2" || c.Identities["alice"] == nil || c.CurrentCluster != "a" {
		t.Errorf("with the same identity: %+v", c)
	}
	c.Put("a", &Cluster{Server: "a:3"}, "bob", &Identity{Certificate: "2"}, false)
	if c.Identities["alice"] != nil || c.Clusters["a"].Identity != "bob" {
		t.Errorf("with another identity: %+v", c)
	}
}

func TestSaveKeepsALink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "dotfiles", "c.yaml"), filepath.Join(dir, "c.yaml")
	if err := os.Mkdir(filepath.Dir(target), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target, []byte("clusters: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	c, err := Load(link)
	if err != nil {
		t.Fatal(err)
	}
	c.Put("a", &Cluster{Server: "a:1"}, "", nil, true)
	if err := c.Save(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link has become %v, %v", st.Mode(), err)
	}
	if got, err := Load(target); err != nil || got.CurrentCluster != "a" {
		t.Errorf("the file behind the link has %+v, %v", got, err)
	}
}
