package server

import (
	"context"
	"os"
	"strings"
	"time"

	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/components/postgres"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/version"
	rpcserver "miren.dev/runtime/servers/rpc"
)

// front implements server.Server.

// Version says what the server is.
func (f *front) Version(context.Context) (*server.VersionResponse, error) {
	v := version.Get()
	return &server.VersionResponse{Version: v.Version, Commit: v.Commit, Date: v.Date, Instance: f.c.m.in.ID}, nil
}

// Caller returns the identity of the caller.
func (f *front) Caller(ctx context.Context) (*server.CallerResponse, error) {
	return rpcserver.Caller(rpc.IdentityFrom(ctx)), nil
}

// part is a process of the installation, with a check that it works.
type part struct {
	name   string
	record string // process record (pkg/proc); empty: this process
	check  func(context.Context) error
}

func (f *front) parts() []part {
	in, m := f.c.m.in, f.c.m
	parts := []part{{name: "server", check: f.c.store.Ping}}
	if m.postgres != nil {
		parts = append(parts, part{"postgres", postgres.ConfigFor(in, f.c.logger).RecordFile, f.c.store.Ping})
	}
	parts = append(parts,
		part{"containerd", in.Socket("containerd", "containerd.pid"), func(ctx context.Context) error {
			c, err := m.containerd.Client()
			if err != nil {
				return err
			}
			_, err = c.Version(ctx)
			return err
		}},
	)
	if running, err := m.buildkit.Running(); running || err != nil || !f.c.cfg.Build.OnDemand {
		parts = append(parts, part{"buildkit", in.Socket("buildkit", "buildkitd.pid"), nil})
	}
	if f.c.cfg.Ingress.HTTPAddress != "" {
		parts = append(parts, part{"ingress", ingressRecord(in), func(ctx context.Context) error {
			st, err := ingress.Client{Socket: ingressAdmin(in)}.Status(ctx)
			if err == nil && !st.Synced {
				return errs.New(errs.Unavailable, "serves the last table; it has not reached the server yet")
			}
			return err
		}})
	}
	return parts
}

// checkTimeout bounds the check of one part.
const checkTimeout = 3 * time.Second

// Status returns the state of every part of the installation.
func (f *front) Status(ctx context.Context) (*server.StatusResponse, error) {
	in := f.c.m.in
	resp := &server.StatusResponse{
		Instance: in.ID, Version: version.Get().Version, StartedAt: f.started, Ready: true, StateDir: in.StateDir,
		Store: "private PostgreSQL", Node: in.ID, RPCAddresses: []string{"unix://" + in.Socket(SocketName)},
	}
	switch url := f.c.cfg.Store.URL; {
	case strings.HasPrefix(url, sqlitestore.Scheme):
		resp.Store = "SQLite"
	case strings.HasPrefix(url, etcdstore.Scheme):
		resp.Store = "etcd"
	case url != "":
		resp.Store = "PostgreSQL elsewhere"
	}
	if a := f.address.Load(); a != nil {
		resp.RPCAddresses = append(resp.RPCAddresses, *a)
	}
	if a := f.apiAddress.Load(); a != nil {
		scheme := "http"
		if f.c.cfg.API.TLS {
			scheme = "https"
		}
		resp.APIAddress = scheme + "://" + *a
	}
	if a := f.sshAddress.Load(); a != nil {
		resp.SSHAddress = *a
	}
	if st, err := (ingress.Client{Socket: ingressAdmin(in)}).Status(ctx); err == nil {
		resp.IngressAddresses = st.Addresses
	}
	for _, p := range f.parts() {
		c := checkPart(ctx, p)
		if why := f.c.m.ingressError.Load(); p.name == "ingress" && c.PID == nil && why != nil {
			c.Health, c.Message = server.HealthFailed, "not running: "+*why+"; the server tries again"
		}
		resp.Ready = resp.Ready && c.Health == server.HealthOk
		resp.Components = append(resp.Components, c)
	}
	if f.trust.Path() != "" {
		c := server.ComponentStatus{Name: trustRules, Health: server.HealthOk}
		if err := f.trust.Err(); err != nil {
			c.Health, c.Message = server.HealthFailed, "the rules read before are in force: "+err.Error()
		}
		resp.Components = append(resp.Components, c)
	}
	resp.Components = append(resp.Components, f.c.m.logSinks.status()...)
	resp.Components = append(resp.Components, f.c.m.metricSinks.status()...)
	resp.BaseImages = f.c.refresh.status()
	return resp, nil
}

func checkPart(ctx context.Context, p part) server.ComponentStatus {
	c := server.ComponentStatus{Name: p.name, Health: server.HealthOk}
	pid := os.Getpid()
	if p.record != "" {
		running, err := proc.Find(p.record)
		switch {
		case err != nil:
			c.Health, c.Message = server.HealthFailed, err.Error()
			return c
		case running == nil:
			c.Health, c.Message = server.HealthStarting, "not running; the server starts it again"
			return c
		}
		pid = running.PID()
	}
	n, mem := int64(pid), int64(0)
	if p.record == "" {
		mem = proc.Self()
	} else {
		mem = proc.Memory(pid)
	}
	c.PID, c.MemoryBytes = &n, &mem
	if p.check != nil {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		if err := p.check(ctx); err != nil {
			c.Health, c.Message = server.HealthFailed, err.Error()
		}
	}
	return c
}

// Stop begins to stop the server; the caller decides which other processes keep
// running (see Teardown).
func (f *front) Stop(ctx context.Context, req *server.StopRequest) error {
	f.c.logger.Info("asked to stop", "identity", rpc.IdentityFrom(ctx).Name, "keep_running", req.KeepRunning)
	time.AfterFunc(50*time.Millisecond, f.stop) // after the answer is sent
	return nil
}

// trustRules is the name of the rules of trust among the components.
const trustRules = "trust rules"

// Doctor checks the machine and the server.
func (f *front) Doctor(ctx context.Context) (*server.DoctorResponse, error) {
	st, err := f.Status(ctx)
	if err != nil {
		return nil, err
	}
	resp := new(server.DoctorResponse)
	for i := range st.Components {
		c := &st.Components[i]
		k := server.Check{Name: c.Name, Level: server.CheckLevelOk, Found: "answers"}
		if c.Health != server.HealthOk {
			k.Level, k.Found = server.CheckLevelFail, c.Message
			k.Advice = "its log is in " + f.c.m.in.State("logs") + "; the server starts it again"
			if c.Name == trustRules {
				k.Advice = errs.HintOf(f.trust.Err())
			}
		}
		resp.Checks = append(resp.Checks, k)
	}
	if st.BaseImages != nil {
		resp.Checks = append(resp.Checks, checkRefresh(st.BaseImages))
	}
	return resp, nil
}
