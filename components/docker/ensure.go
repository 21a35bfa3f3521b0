package docker

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// Bounds of the steps of a set-up.
const (
	connectTimeout = 60 * time.Second // after the container was started
	warmTimeout    = 2 * time.Second
	adoptTimeout   = 10 * time.Second
)

// Ensure makes a sandbox exist and run.
func (d *Driver) Ensure(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	if err := agentdriver.CheckSpec(s); err != nil {
		return execution.Instance{}, err
	}
	unlock, err := d.locks.Lock(ctx, s.ID)
	if err != nil {
		return execution.Instance{}, err
	}
	defer unlock()
	in, err := d.contained(ctx, s.ID)
	switch {
	case errs.Is(err, errs.NotFound): // other parts may exist
	case err != nil:
		return execution.Instance{}, err
	case in.Phase == execution.Running:
		return in, d.hub.Attach(s.ID)
	case in.Phase == execution.Exited:
		return in, nil
	default:
		if in, err := d.finish(ctx, s); err == nil {
			return in, nil
		}
		d.logger.Info("removing an interrupted set-up", "sandbox", s.ID)
		if err := d.teardown(ctx, s.ID); err != nil {
			return execution.Instance{}, err
		}
	}
	if err := d.check(s); err != nil {
		return execution.Instance{}, err
	}
	if err := d.create(ctx, s); err != nil {
		if down := d.teardown(ctx, s.ID); down != nil {
			// The sandbox stays listed, and the next Ensure or Delete continues.
			d.logger.Error("cannot remove the sandbox", "sandbox", s.ID, "error", down)
			err = errors.Join(err, down)
		}
		return execution.Instance{}, errs.Wrap(err, "set up sandbox %s", s.ID)
	}
	d.Notify(s.ID)
	return d.contained(ctx, s.ID)
}

// check refuses what this driver cannot give a sandbox. The bandwidth and the number of files, which every sandbox of a
// server has a limit for, are not limited.
func (d *Driver) check(s execution.Spec) error {
	switch {
	case s.Restore != "":
		return noSnapshots()
	case s.Network == execution.NetworkBridge && d.cfg.Network == "":
		return errs.New(errs.FailedPrecondition, "sandbox %s: the Docker engine's network for sandboxes is not configured", s.ID).
			WithHint("name one with docker.network, whose firewall you keep, or make the sandbox without a network")
	case d.runtime.gvisor && s.DiskBytes > 0 && s.DiskBytes < d.runtime.diskBytes:
		return errs.New(errs.FailedPrecondition, "sandbox %s: runtime %q of the Docker engine lets each sandbox write %d bytes to its disk, more than %d",
			s.ID, d.cfg.Runtime, d.runtime.diskBytes, s.DiskBytes).
			WithHint("set a smaller size in the runtime's --overlay2 argument, or a larger disk for the sandbox")
	}
	return d.CheckPolicy(s)
}

func noPolicy() error {
	return errs.New(errs.Unimplemented, "the Docker driver has no network policies: an engine's network permits what its firewall does").
		WithHint("make the sandbox without a network, or run it on a node with node.driver runsc")
}

// create carries out the set-up.
func (d *Driver) create(ctx context.Context, s execution.Spec) error {
	err := d.loadImage(ctx, s.Image, func(im image) error {
		c, err := d.guestConfig(s, im.config)
		if err != nil {
			return err
		}
		guest, err := d.hub.Prepare(s.ID, c)
		if err != nil {
			return err
		}
		if err := d.writeEtc(s, netip.Addr{}); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// Not given up half-way: the engine would go on, and make what was removed meanwhile.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		return d.createContainer(ctx, s, im, guest)
	})
	if err != nil {
		return err
	}
	if err := d.startContainer(ctx, s); err != nil {
		return err
	}
	return d.setUpGuest(ctx, s)
}

func (d *Driver) startContainer(ctx context.Context, s execution.Spec) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := d.keepTmp(ctx, s); err != nil {
		return err
	}
	_, err := d.engine.ContainerStart(ctx, d.containerName(s.ID), client.ContainerStartOptions{})
	return engineError(err, "start container")
}

// setUpGuest does what follows the start of the container.
func (d *Driver) setUpGuest(ctx context.Context, s execution.Spec) error {
	conn, err := d.connect(ctx, s.ID)
	if err != nil {
		return err
	}
	if s.Network == execution.NetworkBridge {
		c, err := d.inspectContainer(ctx, s.ID)
		if err != nil {
			return err
		}
		address := d.addressOf(c.NetworkSettings)
		if !address.IsValid() {
			return errs.New(errs.Unavailable, "the Docker engine gave the sandbox no address of network %s", d.cfg.Network)
		}
		if err := d.writeEtc(s, address); err != nil {
			return err
		}
	}
	if bytes := s.MemoryBytes; bytes > 0 && d.bootMemory(s) != memoryLimit(bytes) {
		if err := d.update(ctx, s.ID, container.Resources{Memory: memoryLimit(bytes), MemorySwap: memoryLimit(bytes)}); err != nil {
			return err
		}
	}
	if s.Warm {
		warm, cancel := context.WithTimeout(ctx, warmTimeout)
		if err := conn.Warm(warm); err != nil {
			d.logger.Debug("the first process in a sandbox will be slow", "sandbox", s.ID, "error", err)
		}
		cancel()
	}
	if !s.Idle {
		err := conn.StartMain(ctx)
		if errs.Detail(err, "exit_code") != "" {
			err = nil // a command that cannot be started ends the sandbox like any other command: it counts as started
		}
		if err != nil {
			if _, ended := d.hub.Exit(s.ID); ended != nil { // else it has ended before the agent could answer
				return err
			}
		}
	}
	return d.markStarted(s.ID, time.Now())
}

// connect waits for the agent, unless the sandbox ends before.
func (d *Driver) connect(ctx context.Context, id string) (*agent.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	type answer struct {
		conn *agent.Conn
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		c, err := d.hub.Conn(ctx, id)
		answers <- answer{c, err}
	}()
	ended := d.engine.ContainerWait(ctx, d.containerName(id), client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	gone := ended.Error
	for {
		select {
		case a := <-answers:
			return a.conn, a.err
		case <-gone:
			gone = nil // the engine is away; the agent may still connect
		case res := <-ended.Result:
			cancel()
			if a := <-answers; a.err == nil {
				return a.conn, nil
			}
			return nil, errs.New(errs.Internal, "the sandbox ended before its agent connected, with status %d", res.StatusCode)
		}
	}
}

// finish completes a set-up that a server began before it ended.
func (d *Driver) finish(ctx context.Context, s execution.Spec) (execution.Instance, error) {
	c, err := d.inspectContainer(ctx, s.ID)
	if err != nil {
		return execution.Instance{}, err
	}
	if c.State == nil || !c.State.Running {
		return execution.Instance{}, errs.New(errs.FailedPrecondition, "its container was not started")
	}
	if err := d.hub.Attach(s.ID); err != nil {
		return execution.Instance{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	if err := d.setUpGuest(ctx, s); err != nil {
		return execution.Instance{}, err
	}
	return d.contained(ctx, s.ID)
}

// teardown removes everything of a sandbox but its logs, also when the caller has given up.
func (d *Driver) teardown(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := d.removeContainer(ctx, id); err != nil {
		return err // the container still uses the rest
	}
	err := d.hub.Remove(id)
	if e := os.RemoveAll(d.dir("sandboxes", id)); e != nil {
		err = errors.Join(err, errs.New(errs.Unavailable, "remove files: %w", e))
	}
	return err
}

// startedFile says that the main process was started; it contains the time.
const startedFile = "started"

func (d *Driver) markStarted(id string, at time.Time) error {
	path := filepath.Join(d.dir("sandboxes", id), startedFile)
	if err := atomicfile.Write(path, []byte(at.UTC().Format(time.RFC3339Nano)), 0o644, atomicfile.Volatile); err != nil {
		return errs.New(errs.FailedPrecondition, "record start: %w", err)
	}
	return nil
}

// startedAt returns the zero time if the main process was not started. The existence of the file counts, whatever it
// contains.
func (d *Driver) startedAt(id string) (time.Time, error) {
	path := filepath.Join(d.dir("sandboxes", id), startedFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, errs.New(errs.Unavailable, "start of sandbox %s: %w", id, err)
	}
	if at, err := time.Parse(time.RFC3339Nano, string(b)); err == nil {
		return at, nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return time.Time{}, errs.New(errs.Unavailable, "start of sandbox %s: %w", id, err)
	}
	return st.ModTime(), nil
}
