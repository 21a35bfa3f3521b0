package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"miren.dev/runtime/pkg/errs"
)

// other returns a valid value of k that differs from the default.
func other(t *testing.T, k *Key) string {
	t.Helper()
	for _, c := range append([]string{"7", "5000000000", "true", "false", "45s", "48h", "/some/where", "postgres://host/db", "unix:///some/where", "127.0.0.1:4321", "10.9.0.0/16", "http://host:4318", "0.5", "word", "https://host/dir", "ops@example.com", "http-01", "syslog+udp://host", "prometheus+http://host", "02:00-05:00"}, k.Choices...) {
		if c != k.Default && schema.Set(k, new(Config), c) == nil {
			c2 := Default()
			if schema.Set(k, c2, c); k.Get(c2) != k.Get(Default()) {
				return c
			}
		}
	}
	t.Fatalf("%s: no other value found", k.Path)
	return ""
}

// TestEveryKeyFromEverySource sets each key by file, environment and flag.
func TestEveryKeyFromEverySource(t *testing.T) {
	for i := range Keys {
		k := &Keys[i]
		t.Run(k.Path, func(t *testing.T) {
			want := other(t, k)
			if k.Doc == "" {
				t.Error("no documentation")
			}
			file := filepath.Join(t.TempDir(), "c.yaml")
			section, name, ok := strings.Cut(k.Path, ".")
			yml := fmt.Sprintf("%s:\n  %s: %s\n", section, name, want)
			if k.Type == "list" {
				yml = fmt.Sprintf("%s:\n  %s: [%s]\n", section, name, want)
			}
			if !ok {
				yml = fmt.Sprintf("%s: %s\n", section, want)
			}
			if err := os.WriteFile(file, []byte(yml), 0o600); err != nil {
				t.Fatal(err)
			}
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			AddFlags(flags)
			c, err := Load(file, nil, flags)
			if err != nil || k.Get(c) != normal(t, k, want) {
				t.Errorf("file: %q, %v", k.Get(c), err)
			}
			c, err = Load("", []string{k.Env() + "=" + want}, nil)
			if err != nil || k.Get(c) != normal(t, k, want) {
				t.Errorf("environment: %q, %v", k.Get(c), err)
			}
			if err := flags.Parse([]string{"--" + k.Flag() + "=" + want}); err != nil {
				t.Fatal(err)
			}
			c, err = Load("", []string{k.Env() + "=" + k.Default}, flags)
			if err != nil || k.Get(c) != normal(t, k, want) {
				t.Errorf("flag over environment: %q, %v", k.Get(c), err)
			}
		})
	}
}

func normal(t *testing.T, k *Key, s string) string {
	t.Helper()
	c := Default()
	if err := schema.Set(k, c, s); err != nil {
		t.Fatal(err)
	}
	return k.Get(c)
}

func TestGenerateRoundTrips(t *testing.T) {
	var b strings.Builder
	if err := Generate(&b, Default()); err != nil {
		t.Fatal(err)
	}
	c, err := Parse("generated", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Default(), c); d != "" {
		t.Error(d)
	}
}

func TestMistakesAreExplained(t *testing.T) {
	for _, c := range []struct{ yml, want string }{
		{"ingres:\n  http_address: x", "c:1: unknown key ingres"},
		{"ingress:\n  http_adress: x", "c:2: unknown key ingress.http_adress; did you mean ingress.http_address?"},
		{"log:\n  level: loud", `c:2: log.level: "loud" is none of debug`},
		{"build:\n  parallel: 0", "below the minimum 1"},
		{"build:\n  timeout: soon", "not a duration"},
		{"build:\n  refresh_window: 2-5", "does not match"},
		{"build:\n  refresh_window: 02:00-02:00", "ends when it begins"},
		{"state_dir: here", "does not match"},
		{"store: postgres://x", "store should be a mapping"},
		{"state_dir: [a]", "state_dir should be a string"},
		{"log:\n  level: info\n  level: warn", "set twice"},
		{"a: [", "c: yaml"},
		{"ingress:\n  http_address: '8080'", `"8080" is not host:port`},
		{"ingress:\n  http_address: localhost:http", "not a number up to 65535"},
		{"rpc:\n  address: a b:1", "not a host name"},
		{"rpc:\n  hosts: [ok.example, 'not ok']", "not a host name"},
		{"network:\n  pools: [10.0.0.1/8]", "c:2: network.pools: \"10.0.0.1/8\" is not an IPv4 network"},
		{"network:\n  pools: ['fd00::/8']", "not an IPv4 network"},
		{"webhooks:\n  allow: [10.0.0.1/8]", "c:2: webhooks.allow: \"10.0.0.1/8\" is not a network"},
		{"network:\n  allow: [10.0.0.1]", "c:2: network.allow: \"10.0.0.1\" is not an IPv4 network"},
		{"network:\n  connections: 0", "below the minimum 1"},
		{"network:\n  conflist: site.conflist", "not an absolute path"},
		{"network:\n  plugin_dirs: [cni]", "not an absolute path"},
		{"ca_bundle: certs.pem", "neither auto, none nor an absolute path"},
		{"toolchain_dir: bin", "not an absolute path"},
	} {
		_, err := Parse("c", []byte(c.yml))
		if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.yml, err, c.want)
		}
	}
	if _, err := Parse("c", nil); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("log:\n  level: info"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = Parse("c", b) })
}

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for i := range Keys {
		for _, name := range []string{Keys[i].Env(), "--" + Keys[i].Flag()} {
			if other := seen[name]; other != "" {
				t.Errorf("%s means %s and %s", name, other, Keys[i].Path)
			}
			seen[name] = Keys[i].Path
		}
	}
	for path := range checks {
		if schema.Lookup(path) == nil {
			t.Errorf("a check for %s, which does not exist", path)
		}
	}
}

func TestUnknownVariables(t *testing.T) {
	_, err := Load("", []string{"RUNTIME_LOG_LEVLE=debug", "RUNTIME_CONFIG=x", "RUNTIME_CLUSTER=y", "LOG_LEVEL=z", "RUNTIME_LOG_LEVEL=warn"}, nil)
	if err == nil || !strings.Contains(err.Error(), "unknown variable RUNTIME_LOG_LEVLE; did you mean RUNTIME_LOG_LEVEL?") || strings.Contains(err.Error(), "CLUSTER") {
		t.Errorf("%v", err)
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(flags)
	if err := flags.Parse([]string{"--build-parallel=many"}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("log:\n  level: loud\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file, []string{"RUNTIME_BUILD_TIMEOUT=soon"}, flags)
	for _, want := range []string{file + ":2: log.level", "environment RUNTIME_BUILD_TIMEOUT", "flag --build-parallel"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), nil, nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("a missing file: %v", err)
	}
}
