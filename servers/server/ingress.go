package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/version"
)

// ingressRecord is the record of the ingress that serves: a link to that of its
// process.
func ingressRecord(in *instance.Instance) string { return in.Socket("ingress.pid") }

// ingressAdmin is the admin socket of the ingress that serves: a link to that of its
// process.
func ingressAdmin(in *instance.Instance) string { return in.Socket("ingress.sock") }

// ingressProcess has the files of one ingress process. Those of a process with
// another program, node or configuration have other names, so that a new one can start
// beside the one that serves.
type ingressProcess struct{ record, socket, config string }

func ingressFiles(in *instance.Instance, name string) ingressProcess {
	name = ingressPrefix + name
	return ingressProcess{in.Socket(name + ".pid"), in.Socket(name + ".sock"), in.Socket(name + ".yaml")}
}

const ingressPrefix = "ingress-"

// keepIngress keeps the ingress process running until ctx ends, and leaves it
// running then. A process that has another program, node or configuration hands its
// sockets over to a new one, which serves before the old one ends its requests.
func (m *machine) keepIngress(ctx context.Context, node id.Node) error {
	in, log := m.in, m.logger
	exe, err := os.Executable()
	if err != nil {
		return errs.New(errs.Internal, "find this program: %w", err)
	}
	ip, err := writeIngressConfig(m.cfg, in, node, exe)
	if err != nil {
		return err
	}
	var retired sync.WaitGroup
	defer retired.Wait()
	for {
		if err := awaitDrained(ctx, ip); err != nil {
			return err
		}
		began := time.Now()
		p, err := proc.Ensure(ctx, proc.Spec{
			Name: "ingress", Path: exe, Args: []string{"ingress", "run", "--config", ip.config, "--node", string(node), "--socket", ip.socket, "--take-over", ingressAdmin(in)},
			Env: ingressEnv, LogFile: in.State("logs", "ingress.log"), RecordFile: ip.record,
			Ready: func(ctx context.Context) error { return ingressPrepared(ctx, ip, began) },
		})
		if err == nil {
			err = promoteIngress(ctx, in, ip)
		}
		if err != nil {
			why := cause(err)
			m.ingressError.Store(&why)
			return err
		}
		m.ingressError.Store(nil)
		log.Info("ingress runs", "pid", p.PID(), "adopted", p.Adopted)
		if err := m.retireIngresses(ctx, ip, &retired); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.Done():
			log.Error("the ingress process ended; starting it again", "pid", p.PID())
		}
	}
}

// awaitDrained waits for the end of a process that has these files and was replaced:
// it will not serve again.
func awaitDrained(ctx context.Context, ip ingressProcess) error {
	p, err := proc.Find(ip.record)
	if err != nil || p == nil {
		return err
	}
	if st, err := (ingress.Client{Socket: ip.socket}).Status(ctx); err != nil || !st.Draining {
		return nil
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
	}
	return nil
}

// standbySync bounds how long a new ingress may take to read the store before it
// takes over; then it serves the table of its predecessor.
const standbySync = 10 * time.Second

// ingressPrepared returns nil if a process can serve. One that stands by must know
// the store first, if it can be reached.
func ingressPrepared(ctx context.Context, ip ingressProcess, began time.Time) error {
	st, err := ingress.Client{Socket: ip.socket}.Status(ctx)
	if err == nil && st.Standby && !st.Synced && st.Error == "" && time.Since(began) < standbySync {
		err = errs.New(errs.Unavailable, "it has not read the store yet")
	}
	return err
}

// promoteIngress makes a process the one that serves. Each step may be the last one
// of this server; the next server then takes all of them again.
func promoteIngress(ctx context.Context, in *instance.Instance, ip ingressProcess) error {
	// An earlier version had one process, with these files.
	if st, err := os.Lstat(ingressRecord(in)); err == nil && st.Mode().IsRegular() {
		if err := atomicfile.Rename(ingressRecord(in), ingressFiles(in, "earlier").record); err != nil {
			return errs.New(errs.Unavailable, "keep the record of the earlier ingress: %w", err)
		}
	}
	for link, target := range map[string]string{ingressRecord(in): ip.record, ingressAdmin(in): ip.socket} {
		if err := relink(link, filepath.Base(target)); err != nil {
			return errs.New(errs.Unavailable, "name the ingress that serves: %w", err)
		}
	}
	return ingress.Client{Socket: ip.socket}.Serve(ctx)
}

// relink replaces a symbolic link in one step.
func relink(link, target string) error {
	if now, err := os.Readlink(link); err == nil && now == target {
		return nil
	}
	tmp := link + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, link) // it is a link, so package atomicfile does not fit
}

// retireIngresses has all other ingress processes end their requests and then
// themselves, and removes their files. It does not wait for that; retired does.
func (m *machine) retireIngresses(ctx context.Context, now ingressProcess, retired *sync.WaitGroup) error {
	all, err := ingressProcesses(m.in)
	if err != nil {
		return err
	}
	for _, ip := range all {
		if ip == now {
			continue
		}
		p, err := proc.Find(ip.record)
		if err != nil {
			return err
		}
		retired.Go(func() {
			if p != nil {
				m.logger.Info("an ingress process ends its requests", "pid", p.PID())
				if err := p.Stop(ctx, syscall.SIGTERM, m.cfg.Ingress.DrainTimeout+retireGrace); err != nil {
					return // ctx ended: it goes on, and the next server comes here again
				}
			}
			for _, f := range []string{ip.socket, ip.config, ip.record} {
				_ = os.Remove(f) // the next server tries again
			}
		})
	}
	return nil
}

// retireGrace is the time beyond the drain in which a replaced ingress must end.
const retireGrace = 10 * time.Second

// ingressProcesses returns the files of all ingress processes, also of ended ones.
func ingressProcesses(in *instance.Instance) ([]ingressProcess, error) {
	entries, err := os.ReadDir(in.RunDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "find the ingress processes: %w", err)
	}
	var out []ingressProcess
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), ingressPrefix)
		name, suffix, dot := strings.Cut(name, ".")
		if ip := ingressFiles(in, name); ok && dot && slices.Contains([]string{"pid", "sock", "yaml"}, suffix) && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	return out, nil
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

// writeIngressConfig writes the configuration of the ingress process, whose files are
// named after it, the node and the program.
func writeIngressConfig(cfg *config.Config, in *instance.Instance, node id.Node, exe string) (ingressProcess, error) {
	st, err := os.Stat(exe)
	if err != nil {
		return ingressProcess{}, errs.New(errs.Unavailable, "read the time of this program: %w", err)
	}
	var b bytes.Buffer
	v := version.Get()
	fmt.Fprintf(&b, "# Written by runtime %s (%s), a program of %d bytes of %s, for its ingress process on %s.\n",
		v.Version, v.Commit, st.Size(), st.ModTime().UTC().Format(time.RFC3339Nano), node)
	if err := config.Generate(&b, ingressConfig(cfg)); err != nil {
		return ingressProcess{}, err
	}
	// Earlier versions had one file, and before that the whole configuration.
	for _, f := range []string{in.Socket("config.yaml"), in.Socket("ingress.yaml")} {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			return ingressProcess{}, errs.New(errs.Unavailable, "remove the configuration of an earlier version: %w", err)
		}
	}
	sum := sha256.Sum256(b.Bytes())
	ip := ingressFiles(in, hex.EncodeToString(sum[:4]))
	old, err := os.ReadFile(ip.config)
	if err == nil && bytes.Equal(old, b.Bytes()) {
		return ip, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return ingressProcess{}, errs.New(errs.Unavailable, "read %s: %w", ip.config, err)
	}
	// Every start compares the file and writes it if it differs.
	if err := atomicfile.Write(ip.config, b.Bytes(), 0o600, atomicfile.Volatile); err != nil {
		return ingressProcess{}, errs.New(errs.Unavailable, "write the ingress configuration: %w", err)
	}
	return ip, nil
}

// stopIngress ends all ingress processes, at the same time.
func stopIngress(ctx context.Context, in *instance.Instance) error {
	all, err := ingressProcesses(in)
	if err != nil {
		return err
	}
	all = append(all, ingressProcess{record: ingressRecord(in)}) // of an earlier version, or a link
	var g errgroup.Group
	for _, ip := range all {
		g.Go(func() error {
			p, err := proc.Find(ip.record)
			if err != nil || p == nil {
				return err
			}
			return p.Stop(ctx, syscall.SIGTERM, 5*time.Second)
		})
	}
	return g.Wait()
}
