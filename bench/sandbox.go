package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/entity"
)

const (
	sandboxImage  = "debian"
	sandboxCPU    = 1000
	sandboxMemMiB = 512
	execWarmup    = 20
)

// Goals of an exec, in milliseconds; p50 of a static and of a dynamic program.
const (
	staticGoalP50 = 4
	execGoalP50   = 6
	execGoalP99   = 15
)

// trueCommand is the command to run: the dynamically linked /bin/true of the
// image.
var trueCommand = []string{"/bin/true"}

// sleepCommand is the command of a container that is paused.
var sleepCommand = []string{"/bin/sleep", "1000"}

func benchSandbox(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	c := sandbox.NewSandboxesClient(i.client)
	// This sandbox stays: the image is there afterwards, and execs are measured
	// in it.
	stays, _, err := i.create(ctx, c)
	if err != nil {
		return err
	}
	bare, err := newBare(ctx, b, "sandbox", sandboxImage)
	if err != nil {
		return err
	}
	defer bare.close()
	var p pair
	err = b.turns(ctx, 15, func(side int) (figures, error) {
		if side == 1 {
			d, err := bare.run(ctx)
			return figures{d.Seconds() * 1000}, err
		}
		sb, d, err := i.create(ctx, c)
		if err != nil {
			return nil, err
		}
		return figures{d.Seconds() * 1000}, i.remove(ctx, c, sb)
	}, &p)
	if err != nil {
		return err
	}
	b.report.compare("create to first exec", "ms", "runsc run", &p, 0, 1.2)

	var once pair
	err = b.turns(ctx, 15, func(side int) (figures, error) {
		if side == 0 {
			d, err := i.runOnce(ctx, c)
			return figures{d.Seconds() * 1000}, err
		}
		sb, d, err := i.create(ctx, c)
		if err != nil {
			return nil, err
		}
		return figures{d.Seconds() * 1000}, i.remove(ctx, c, sb)
	}, &once)
	if err != nil {
		return err
	}
	b.report.compare("`r sandbox run -- true`, wall time", "ms", "create to first exec", &once, 0, runOnceGoal)

	n := 500
	if b.opt.quick {
		n = 100
	}
	took, err := repeat(ctx, n, func() error { return execRPC(ctx, c, stays.GetID()) })
	if err != nil {
		return err
	}
	b.report.figure("exec through RPC, p50", "ms", took.ms(50), execGoalP50)
	b.report.figure("exec through RPC, p99", "ms", took.ms(99), execGoalP99)
	if err := i.remove(ctx, c, stays); err != nil {
		return err
	}
	return benchDriver(ctx, b, n)
}

// runOnceGoal is the largest wall time of r sandbox run relative to create to first exec.
const runOnceGoal = 1.5

// runOnce runs r sandbox run and returns how long it took. Then it waits until the sandbox is removed from the machine.
func (i *install) runOnce(ctx context.Context, c sandbox.SandboxesClient) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const name = "bench-once"
	cmd := exec.CommandContext(ctx, i.bench.program(0), append([]string{"sandbox", "run", "--name", name, "--image", sandboxImage,
		"--cpu", fmt.Sprintf("%dm", sandboxCPU), "--memory", fmt.Sprintf("%dMiB", sandboxMemMiB), "--"}, trueCommand...)...)
	cmd.Env = []string{"HOME=" + i.dir, "PATH=" + os.Getenv("PATH"), "RUNTIME_STATE_DIR=" + filepath.Join(i.dir, "state"), "RUNTIME_RUN_DIR=" + filepath.Join(i.dir, "run")}
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("r sandbox run: %w: %s", err, out)
	}
	took := time.Since(began)
	for {
		list, _, err := entity.List[sandbox.Sandbox](ctx, i.store, entity.Query{})
		if err != nil {
			return 0, err
		}
		if !slices.ContainsFunc(list, func(sb *sandbox.Sandbox) bool { return sb.Name == name }) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	// The sandbox's id is not known here, so the end of its teardown cannot be
	// observed. It takes a quarter of a second.
	time.Sleep(time.Second)
	return took, nil
}

// repeat calls f repeatedly: some calls to warm up, and n to measure.
func repeat(ctx context.Context, n int, f func() error) (latencies, error) {
	var all latencies
	for k := range execWarmup + n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := f(); err != nil {
			return nil, err
		}
		if k >= execWarmup {
			all = append(all, time.Since(began))
		}
	}
	return all, nil
}

// create makes a sandbox and returns how long it took until a first process in it
// had ended.
func (i *install) create(ctx context.Context, c sandbox.SandboxesClient) (*sandbox.Sandbox, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cpu, mem := int64(sandboxCPU), int64(sandboxMemMiB<<20)
	began := time.Now()
	r, err := c.Run(ctx, &sandbox.RunRequest{Image: sandboxImage, Command: []string{"sleep", "1000"}, CPUMillis: &cpu, MemoryBytes: &mem})
	if err != nil {
		return nil, 0, err
	}
	sb, err := entity.Decode[sandbox.Sandbox](&r.Sandbox)
	if err != nil {
		return nil, 0, err
	}
	w, err := c.Wait(ctx, &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: sandbox.WaitUntilReady})
	if err != nil {
		return nil, 0, err
	}
	if sb, err = entity.Decode[sandbox.Sandbox](&w.Sandbox); err != nil {
		return nil, 0, err
	}
	if !sb.Status.Ready {
		return nil, 0, fmt.Errorf("sandbox %s is %s: %s", sb.ID, sb.Status.Phase, sb.Status.Message)
	}
	if err := execRPC(ctx, c, sb.GetID()); err != nil {
		return nil, 0, err
	}
	return sb, time.Since(began), nil
}

// remove deletes a sandbox and waits until it is removed from the machine.
func (i *install) remove(ctx context.Context, c sandbox.SandboxesClient, sb *sandbox.Sandbox) error {
	if err := c.Delete(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()}); err != nil {
		return err
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		if _, err := c.Stats(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()}); err != nil {
			return ctx.Err() // its control group, the last of its parts, is gone
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("sandbox %s is not gone after 30 s", sb.ID)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func execRPC(ctx context.Context, c sandbox.SandboxesClient, sid id.Sandbox) error {
	st, err := c.Exec(ctx, &sandbox.ExecRequest{Sandbox: sid, Command: trueCommand})
	if err != nil {
		return err
	}
	defer st.Close()
	for {
		o, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("an exec ended without an exit code")
		}
		if err != nil {
			return err
		}
		if o.ExitCode != nil {
			if *o.ExitCode != 0 {
				return fmt.Errorf("exit code %d", *o.ExitCode)
			}
			return nil
		}
	}
}

func execDriver(ctx context.Context, d execution.Driver, sid string) error {
	p, err := d.Exec(ctx, sid, execution.ExecSpec{Command: trueCommand})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Stdin().Close(); err != nil {
		return err
	}
	errOut := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, p.Stderr())
		errOut <- err
	}()
	if _, err := io.Copy(io.Discard, p.Stdout()); err != nil {
		return err
	}
	if err := <-errOut; err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	return err
}
