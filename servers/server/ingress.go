package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/version"
)

// ingressEnv is the whole environment of the ingress process: that of the server
// may hold passwords, and what it says is in the configuration file.
var ingressEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMEMLIMIT=256MiB"}

func ingressRecord(in *instance.Instance) string { return in.Socket("ingress.pid") }

// keepIngress keeps the ingress process running until ctx ends, and leaves it
// running then. It replaces a process that has another configuration or
// version.
func (m *machine) keepIngress(ctx context.Context) error {
	cfg, in, log := m.cfg, m.in, m.logger
	file, changed, err := writeIngressConfig(cfg, in)
	if err != nil {
		return err
	}
	if changed {
		if err := stopIngress(ctx, in); err != nil {
			return err
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return errs.New(errs.Internal, "find this program: %w", err)
	}
	for {
		p, err := proc.Ensure(ctx, proc.Spec{
			Name: "ingress", Path: exe, Args: []string{"ingress", "run", "--config", file},
			Env: ingressEnv, LogFile: in.State("logs", "ingress.log"), RecordFile: ingressRecord(in),
			Ready: func(ctx context.Context) error {
				_, err := ingress.Client{Socket: in.Socket("ingress.sock")}.Status(ctx)
				return err
			},
		})
		if err != nil {
			why := cause(err)
			m.ingressError.Store(&why)
			return err
		}
		m.ingressError.Store(nil)
		log.Info("ingress runs", "pid", p.PID(), "adopted", p.Adopted)
		select {
		case <-ctx.Done():
			return nil
		case <-p.Done():
			log.Error("the ingress process ended; starting it again", "pid", p.PID())
		}
	}
}

// cause returns the error that a command of this program printed when it failed
// to start: err's hint holds the end of its log.
func cause(err error) string {
	text := errs.HintOf(err)
	i := strings.LastIndex(text, "\nerror: ")
	if i < 0 {
		return err.Error()
	}
	var out []string
	for l := range strings.Lines(text[i:]) {
		l = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(l), "error: "), "hint: ")
		if l != "" {
			out = append(out, l)
		}
	}
	return strings.Join(out, "; ")
}

// ingressConfig is what the ingress process needs of the configuration. The rest
// has its default, since passwords are among it.
func ingressConfig(cfg *config.Config) *config.Config {
	c := config.Default()
	c.StateDir, c.RunDir, c.Log, c.Ingress = cfg.StateDir, cfg.RunDir, cfg.Log, cfg.Ingress
	return c
}

// writeIngressConfig writes the configuration of the ingress process and reports
// whether it differs from the last one.
func writeIngressConfig(cfg *config.Config, in *instance.Instance) (file string, changed bool, err error) {
	var b bytes.Buffer
	v := version.Get()
	fmt.Fprintf(&b, "# Written by runtime %s (%s) for its ingress process.\n", v.Version, v.Commit)
	if err := config.Generate(&b, ingressConfig(cfg)); err != nil {
		return "", false, err
	}
	// Earlier versions handed over the whole configuration.
	if err := os.Remove(in.Socket("config.yaml")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", false, errs.New(errs.Unavailable, "remove the configuration of an earlier version: %w", err)
	}
	file = in.Socket("ingress.yaml")
	old, err := os.ReadFile(file)
	if err == nil && bytes.Equal(old, b.Bytes()) {
		return file, false, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", false, errs.New(errs.Unavailable, "read %s: %w", file, err)
	}
	// Every start compares the file and writes it if it differs.
	if err := atomicfile.Write(file, b.Bytes(), 0o600, atomicfile.Volatile); err != nil {
		return "", false, errs.New(errs.Unavailable, "write the ingress configuration: %w", err)
	}
	return file, true, nil
}

// stopIngress ends the ingress process, if one runs.
func stopIngress(ctx context.Context, in *instance.Instance) error {
	p, err := proc.Find(ingressRecord(in))
	if err != nil || p == nil {
		return err
	}
	return p.Stop(ctx, syscall.SIGTERM, 5*time.Second)
}
