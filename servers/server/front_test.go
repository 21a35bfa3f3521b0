package server

import (
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/trace/otlp"
	"miren.dev/runtime/servers/runner"
	"miren.dev/runtime/servers/workspace"
	"miren.dev/runtime/testsupport/etcdtest"
	"miren.dev/runtime/testsupport/pgtest"
)

// frontEnv is the server's real front, over a store, without the machine.
type frontEnv struct {
	t       *testing.T
	f       *front
	c       *control
	address string // address of its TLS listener
	traces  *otlp.Exporter
}

// newFrontEnv makes a front with an empty configuration, which change may alter.
func newFrontEnv(t *testing.T, change ...func(*config.Config)) *frontEnv {
	t.Helper()
	return newFrontEnvOn(t, pgtest.Store(t, api.Kinds()...), change...)
}

// eachStore runs a test on each kind of store.
func eachStore(t *testing.T, run func(t *testing.T, e *frontEnv)) {
	for _, name := range []string{"pgstore", "sqlitestore", "etcdstore"} {
		t.Run(name, func(t *testing.T) {
			var url string
			switch name {
			case "pgstore":
				run(t, newFrontEnv(t))
				return
			case "sqlitestore":
				url = "sqlite://" + t.TempDir() + "/store.db"
			case "etcdstore":
				url = etcdtest.Start(t).URL(t)
			}
			cfg := &config.Config{}
			cfg.Store.KeepRevisions = 100_000
			store, err := openStore(t.Context(), cfg, url, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(store.Close)
			run(t, newFrontEnvOn(t, store))
		})
	}
}

func newFrontEnvOn(t *testing.T, store entityStore, change ...func(*config.Config)) *frontEnv {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt-daemon-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	in, err := instance.Open(dir+"/state", dir+"/run")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	cfg := &config.Config{StateDir: in.StateDir}
	cfg.Disks.Stores = []string{"/none"}
	for _, c := range change {
		c(cfg)
	}
	sealer := schema.NewSealer(in.State("secrets.key"))
	c := &control{
		cfg: cfg, logger: log, store: store, sealer: sealer,
		m: &machine{cfg: cfg, in: in, logger: log, buildLogs: buildlog.New(in.State("logs"), 0)}, informers: informer.New(informer.Config{Reader: store}),
		workspace: workspace.Settings{Timeout: 5 * time.Minute},
	}
	c.policies = policies.New(store, c.informers)
	c.quotas = quotas.New(c.policies, c.informers)
	c.runners = runner.NewHub(log)
	c.images = &resolver{m: c.m}
	c.templates = templates.New(store, c.informers, c.images.Resolve, log)
	c.rt = kit.New(kit.Config{Informers: c.informers})
	sources := openSources(cfg, in, log)
	c.templates.Sources, c.templates.Sealer = sources.Store, sealer
	traces, err := openTraces(t.Context(), cfg, "runtime", in.ID, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traces.Close)
	c.traces = traces.Tracer()
	deps := c.services(sources)
	c.deps = &deps
	f, err := newFront(c, sources, func() {})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.rpc.Serve(l) }()
	t.Cleanup(func() {
		f.rpc.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &frontEnv{t: t, f: f, c: c, address: l.Addr().String(), traces: traces}
}

// dial makes a client with a certificate, or an anonymous one.
func (e *frontEnv) dial(certificate, key []byte) *rpc.Client {
	e.t.Helper()
	conf, err := identity.ClientTLS(e.f.ca.CA(), certificate, key, "localhost")
	if err != nil {
		e.t.Fatal(err)
	}
	cl, err := rpc.NewClient(e.address, rpc.ClientOptions{TLS: conf})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(cl.Close)
	return cl
}
