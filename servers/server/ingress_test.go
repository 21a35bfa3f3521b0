package server

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

func TestCause(t *testing.T) {
	ended := errs.New(errs.Unavailable, "it ended before it was ready")
	for _, c := range []struct{ hint, want string }{
		{"", "it ended before it was ready"},
		{"its log is /x; last lines:\nlevel=INFO msg=x", "it ended before it was ready"},
		{"its log is /x; last lines:\nerror: old\nerror: listen: in use\n  hint: choose another", "listen: in use; choose another"},
	} {
		if got := cause(ended.WithHint("%s", c.hint)); got != c.want {
			t.Errorf("%q: %q, want %q", c.hint, got, c.want)
		}
	}
}

// TestIngressConfigHasNoPasswords: the ingress process gets what it needs.
func TestIngressConfigHasNoPasswords(t *testing.T) {
	dir := t.TempDir()
	in, err := instance.Open(dir+"/state", dir+"/run")
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.StateDir, cfg.RunDir, cfg.Log.Level = dir+"/state", dir+"/run", "debug"
	cfg.Store.URL = "postgres://runtime:hunter2@db/runtime"
	cfg.Ingress.HTTPAddress, cfg.Ingress.User = "127.0.0.1:8123", "4321"
	// That of an earlier version.
	if err := os.WriteFile(in.Socket("config.yaml"), []byte(cfg.Store.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	exe := dir + "/program"
	if err := os.WriteFile(exe, []byte("1"), 0o700); err != nil {
		t.Fatal(err)
	}
	var first ingressProcess
	for range 2 {
		ip, err := writeIngressConfig(cfg, in, "node-1", exe)
		if err != nil || first != (ingressProcess{}) && ip != first {
			t.Fatalf("%+v, first %+v: %v", ip, first, err)
		}
		first = ip
		file := ip.config
		b, err := os.ReadFile(file)
		if err != nil || strings.Contains(string(b), "hunter2") {
			t.Errorf("%v: %s", err, b)
		}
		got, err := config.Load(file, nil, nil)
		if err != nil || got.StateDir != cfg.StateDir || got.RunDir != cfg.RunDir || got.Log != cfg.Log ||
			got.Ingress.HTTPAddress != cfg.Ingress.HTTPAddress || got.Ingress.User != cfg.Ingress.User {
			t.Errorf("%+v: %v", got, err)
		}
	}
	if _, err := os.Stat(in.Socket("config.yaml")); !os.IsNotExist(err) {
		t.Errorf("the configuration of an earlier version: %v", err)
	}
	if err := os.WriteFile(exe, []byte("22"), 0o700); err != nil {
		t.Fatal(err)
	}
	program, err := writeIngressConfig(cfg, in, "node-1", exe)
	if err != nil || program == first {
		t.Errorf("another program has the same process: %v", err)
	}
	if ip, err := writeIngressConfig(cfg, in, "node-2", exe); err != nil || ip == program {
		t.Errorf("another node has the same process: %v", err)
	}
	cfg.Ingress.HTTPAddress = "127.0.0.1:8124"
	if ip, err := writeIngressConfig(cfg, in, "node-1", exe); err != nil || ip == program {
		t.Errorf("another configuration has the same process: %v", err)
	}
	if all, err := ingressProcesses(in); err != nil || len(all) != 4 {
		t.Errorf("%+v %v", all, err)
	}
}

func TestIngressUser(t *testing.T) {
	cfg := config.Default()
	if os.Geteuid() != 0 {
		if u, err := findIngressUser(t.Context(), cfg); err != nil || u.UID != os.Geteuid() {
			t.Errorf("without root: %+v %v", u, err)
		}
		return
	}
	for _, c := range []struct {
		setting string
		uid     int
		class   errs.Class
	}{
		{"1999999", 1999999, ""},
		{"root", 0, errs.InvalidArgument},
		{"0", 0, errs.InvalidArgument},
		{"no-such-user", 0, errs.FailedPrecondition},
	} {
		cfg.Ingress.User = c.setting
		u, err := findIngressUser(t.Context(), cfg)
		if errs.ClassOf(err) != c.class || err == nil && u.UID != c.uid || err != nil && errs.HintOf(err) == "" {
			t.Errorf("%s: %+v %v", c.setting, u, err)
		}
	}
	cfg.Ingress.User = config.Default().Ingress.User
	u, err := findIngressUser(t.Context(), cfg)
	if err != nil || u.Name != ingressUserDefault || u.UID == 0 || strconv.Itoa(u.UID) == u.Name {
		t.Errorf("the default: %+v %v", u, err)
	}
}
