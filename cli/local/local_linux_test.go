package local

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

func TestFromEnv(t *testing.T) {
	t.Setenv("RUNTIME_RUN_DIR", "")
	t.Setenv("RUNTIME_LOCAL_DIR", "")
	t.Setenv("RUNTIME_LOCAL_IDLE_END", "")
	if o, err := FromEnv(); err != nil || o.Database != DefaultDatabase || o.RunDir != config.DefaultRunDir() || o.IdleEnd != DefaultIdleEnd {
		t.Errorf("defaults: %+v, %v", o, err)
	}
	t.Setenv("RUNTIME_RUN_DIR", "/run/other")
	t.Setenv("RUNTIME_LOCAL_DIR", "/var/tmp/x/")
	t.Setenv("RUNTIME_LOCAL_IDLE_END", "2m")
	if o, err := FromEnv(); err != nil || o.Database != "/var/tmp/x/store.db" || o.RunDir != "/run/other" || o.IdleEnd != 2*time.Minute {
		t.Errorf("%+v, %v", o, err)
	}
	for _, s := range []string{"soon", "0s", "-1m"} {
		t.Setenv("RUNTIME_LOCAL_IDLE_END", s)
		if _, err := FromEnv(); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestArgs: the server's arguments are flags of its configuration.
func TestArgs(t *testing.T) {
	i := &Installation{o: Options{Database: "/var/tmp/x/store.db", RunDir: "/run/r", IdleEnd: time.Minute}}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	if err := flags.Parse(i.args()[2:]); err != nil {
		t.Fatal(err)
	}
	var environ []string // makes the server listen, if its arguments let it
	for i := range config.Keys {
		if k := &config.Keys[i]; strings.HasSuffix(k.Path, "address") {
			environ = append(environ, k.Env()+"=127.0.0.1:1")
		}
	}
	c, err := config.Load("", environ, flags)
	if err != nil || c.StateDir != "/var/tmp/x" || c.RunDir != "/run/r" || c.IdleEnd != time.Minute || c.Ingress.HTTPAddress != "" || !c.Build.OnDemand {
		t.Errorf("%+v, %v", c, err)
	}
	for i := range config.Keys {
		if k := &config.Keys[i]; strings.HasSuffix(k.Path, "address") && k.Get(c) != "" {
			t.Errorf("%s is %s", k.Path, k.Get(c))
		}
	}
	if env := environment([]string{"A=b", "RUNTIME_CONFIG=/etc/x"}); !slices.Equal(env, []string{"A=b"}) {
		t.Errorf("environment %v", env)
	}
}
