package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
)

func benchIngress(ctx context.Context, b *bench) error {
	if err := benchProxy(ctx, b); err != nil {
		return err
	}
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	sb, err := i.sandbox(ctx)
	if err != nil {
		return err
	}
	direct := net.JoinHostPort(sb.Status.Address, strconv.FormatInt(sb.Spec.Template.Ports[0].Number, 10))
	groups := cgroup.New(i.in.Name(""))
	used := func() (time.Duration, error) {
		u, err := groups.Usage(string(sb.ID))
		return u.CPU, err
	}
	for _, conns := range []int{1, 16, 64} {
		what := "into a sandbox, " + plural(conns, "connection")
		ours, peer := target{address: i.address, host: i.app.host()}, target{address: direct, host: i.app.host()}
		if err := requestRow(ctx, b, what, "straight to it", conns, ours, peer, 0.85, used); err != nil {
			return err
		}
	}
	return nil
}

// sandbox returns the sandbox that serves the app.
func (i *install) sandbox(ctx context.Context) (*sandbox.Sandbox, error) {
	all, _, err := entity.List[sandbox.Sandbox](ctx, i.store, entity.Query{})
	if err != nil {
		return nil, err
	}
	a, _, err := entity.List[app.App](ctx, i.store, entity.Query{Name: i.app.name})
	if err != nil {
		return nil, err
	}
	for _, sb := range all {
		if len(a) == 1 && sb.Spec.AppVersion == a[0].Status.Active() && sb.Status.Ready && len(sb.Spec.Template.Ports) > 0 {
			return sb, nil
		}
	}
	return nil, errors.New("no sandbox of the app is ready")
}

// requestRow compares request rates. With used, the CPU time of the backend so
// far, it also reports the backend's cost of a request.
func requestRow(ctx context.Context, b *bench, what, peerName string, conns int, ours, peer target, goal float64, used func() (time.Duration, error)) error {
	var hammers [2]requester
	for n, to := range []target{ours, peer} {
		h, err := to.connect(ctx, conns)
		if err != nil {
			return err
		}
		defer h.close()
		hammers[n] = h
	}
	if used == nil {
		used = func() (time.Duration, error) { return 0, nil }
	}
	var rate, p99, cpu pair
	if err := b.turns(ctx, 7, func(side int) (figures, error) {
		before, err := used()
		if err != nil {
			return nil, err
		}
		took, d, err := hammers[side].run(ctx, b.turn())
		if err != nil {
			return nil, err
		}
		after, err := used()
		each := float64((after - before).Microseconds()) / float64(len(took))
		return figures{float64(len(took)) / d.Seconds(), took.ms(99), each}, err
	}, &rate, &p99, &cpu); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	b.report.compare(what, "requests/s", peerName, &rate, goal, 0)
	b.report.compare(what+", p99", "ms", peerName, &p99, 0, 0)
	if cpu.ours[0] > 0 {
		b.report.compare(what+", CPU of the sandbox per request", "µs", peerName, &cpu, 0, 0)
	}
	return nil
}

// describeBackend writes an app with one ready sandbox of node at address.
func describeBackend(ctx context.Context, st entity.Store, node *core.Node, project *core.Project, name, address string) error {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	port, err := strconv.ParseInt(portText, 10, 64)
	if err != nil {
		return err
	}
	a := app.AppKind.New().(*app.App)
	a.Name, a.Project = name, project.ID
	if err := entity.Create(ctx, st, a); err != nil {
		return err
	}
	image := "bench@sha256:" + strings.Repeat("0", 64)
	v := app.AppVersionKind.New().(*app.AppVersion)
	v.Project, v.Spec.App, v.Spec.Number, v.Spec.Image = project.ID, a.GetID(), 1, image
	var web app.Service
	web.SetDefaults()
	web.Name = "web"
	v.Spec.Services = []app.Service{web}
	if err := entity.Create(ctx, st, v); err != nil {
		return err
	}
	sb := sandbox.SandboxKind.New().(*sandbox.Sandbox)
	sb.Project, sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service = project.ID, a.GetID(), id.AppVersion(v.ID), "web"
	sb.Spec.Node = node.GetID()
	sb.Spec.Template.Image, sb.Spec.Template.Ports = image, []sandbox.Port{{Name: "http", Number: port}}
	sb.Status.Phase, sb.Status.Ready, sb.Status.Address = sandbox.SandboxPhaseRunning, true, host
	if err := entity.Create(ctx, st, sb); err != nil {
		return err
	}
	a.Status.Activate(id.AppVersion(v.ID))
	return entity.UpdateStatus(ctx, st, a)
}

// startIngress runs the product's ingress process for the installation, which serves HTTP at address and HTTPS at secure.
func (b *bench) startIngress(ctx context.Context, in *instance.Instance) (address, secure string, stop func() error, err error) {
	free, err := freeURL("http")
	if err != nil {
		return "", "", nil, err
	}
	freeSecure, err := freeURL("https")
	if err != nil {
		return "", "", nil, err
	}
	cfg := config.Default()
	cfg.StateDir, cfg.RunDir, cfg.Ingress.HTTPAddress, cfg.Ingress.HTTPSAddress = in.StateDir, filepath.Dir(in.RunDir), free.Host, freeSecure.Host
	var text bytes.Buffer
	if err := config.Generate(&text, cfg); err != nil {
		return "", "", nil, err
	}
	file := b.scratch.path("ingress.yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return "", "", nil, err
	}
	logFile, err := os.Create(b.scratch.path("logs", "ingress.log"))
	if err != nil {
		return "", "", nil, err
	}
	defer logFile.Close()
	cmd := exec.Command(filepath.Join(b.opt.bin, "runtime"), "ingress", "run", "--config", file)
	cmd.Env = append(os.Environ(), "GOMEMLIMIT=256MiB") // as the server starts it
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", "", nil, err
	}
	stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		_ = cmd.Wait() // how it ends does not matter
		return nil
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if err = errors.Join(once(ctx, plainTarget(free.Host)), once(ctx, secureTarget(freeSecure.Host))); err == nil {
			return free.Host, freeSecure.Host, stop, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return "", "", nil, errors.Join(fmt.Errorf("ingress: %w: %s", err, tail(logFile.Name())), stop())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// once sends one request by HTTP/1.1.
func once(ctx context.Context, to target) error {
	h, err := newHammer(ctx, to.address, to.host, 1, to.tls)
	if err != nil {
		return err
	}
	defer h.close()
	_ = h.conns[0].SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := h.conns[0].Write(h.request); err != nil {
		return err
	}
	return answer(h.readers[0])
}
