package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Goals of programs in sandboxes: milliseconds, or ratios to bare runsc.
const (
	installGoal     = 1.3
	wakeLargeGoal   = 1000
	interpreterGoal = 10
)

const (
	// programImage is the image of templates for Python.
	programImage = baseimage.Prefix + "sandbox:base"
	// interpreterTemplate is the template with contexts for code.
	interpreterTemplate = "code-interpreter-v1"
	// wheelsDir has the packages to install, in sandboxes.
	wheelsDir = "/opt/wheels"
)

// benchPrograms measures what programs ask of sandboxes, at the driver.
func benchPrograms(ctx context.Context, b *bench, d *driverInstall) error {
	image, err := importImage(ctx, b, d.images, programImage)
	if err != nil {
		return err
	}
	large := *d
	large.image = image
	if err := benchInstall(ctx, b, &large); err != nil {
		return err
	}
	return benchWakeLarge(ctx, b, &large)
}

// benchInstall installs requests by pip from files in the sandbox, beside runsc alone.
func benchInstall(ctx context.Context, b *bench, d *driverInstall) error {
	dir := b.scratch.path("wheels", "requests")
	if err := download(ctx, b.scratch.path("venv"), dir); err != nil {
		return err
	}
	alone, err := newBare(ctx, b, "install", programImage)
	if err != nil {
		return err
	}
	defer alone.close()
	if err := os.CopyFS(filepath.Join(alone.rootfs, wheelsDir), os.DirFS(dir)); err != nil {
		return err
	}
	theirs := alone.next()
	if err := alone.start(ctx, theirs); err != nil {
		return err
	}
	s := d.spec("install")
	if _, err := d.Ensure(ctx, s); err != nil {
		return err
	}
	files := d.Files(s.ID, sandboxfs.View{User: "root"})
	if err := files.Mkdir(ctx, wheelsDir, 0o755, true); err != nil {
		return err
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		return err
	}
	for _, name := range wheels {
		if err := copyIn(ctx, files, name, wheelsDir+"/"+filepath.Base(name)); err != nil {
			return err
		}
	}
	var p pair
	turn := 0
	err = b.turns(ctx, 5, func(side int) (figures, error) {
		turn++
		command := []string{"/usr/bin/python3", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheelsDir, "--target", fmt.Sprint("/tmp/installed-", turn), "requests"}
		began := time.Now()
		var err error
		if side == 1 {
			err = alone.command(ctx, append([]string{"exec", theirs}, command...)...)
		} else {
			err = runProgram(ctx, d, s.ID, command...)
		}
		return figures{time.Since(began).Seconds()}, err
	}, &p)
	if err != nil {
		return err
	}
	b.report.compare("pip install requests", "s", "runsc exec", &p, 0, installGoal)
	return errors.Join(alone.remove(ctx, theirs), d.Delete(ctx, s.ID))
}

// runProgram executes a program without input or output, waits for its end, and returns what it says when it fails.
func runProgram(ctx context.Context, d execution.Driver, sid string, command ...string) error {
	p, err := d.Exec(ctx, sid, execution.ExecSpec{Command: command, NoInput: true})
	if err != nil {
		return err
	}
	defer p.Close()
	text, err := io.ReadAll(p.Stderr())
	if err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("%v: exit code %d: %s", command, code, text)
	}
	return err
}

// download gets requests and what it needs, without code for a processor.
func download(ctx context.Context, venv, dir string) error {
	for _, c := range []*exec.Cmd{
		exec.CommandContext(ctx, "python3", "-m", "venv", venv),
		exec.CommandContext(ctx, filepath.Join(venv, "bin", "pip"), "download", "--quiet", "--only-binary=:all:", "--platform", "any",
			"--implementation", "py", "--abi", "none", "--dest", dir, "requests==2.32.3"),
	} {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", c.Args, err, out)
		}
	}
	return nil
}

func copyIn(ctx context.Context, files sandboxfs.FS, from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := files.Write(ctx, to, sandboxfs.WriteOptions{})
	if err != nil {
		return err
	}
	if _, err = io.Copy(w, f); err == nil {
		_, err = w.Commit(ctx)
	}
	return errors.Join(err, w.Close())
}

// largeMemory is the memory of a program that is paused.
const largeMemory = 1 << 30

// benchWakeLarge resumes a sandbox whose program has memory that does not compress.
func benchWakeLarge(ctx context.Context, b *bench, d *driverInstall) error {
	s := d.spec("large", "/usr/bin/python3", "-c", fmt.Sprintf("import os, time\nx = os.urandom(%d)\nopen('/tmp/filled', 'w').close()\ntime.sleep(1e6)", largeMemory))
	s.MemoryBytes = 2 * largeMemory
	if _, err := d.Ensure(ctx, s); err != nil {
		return err
	}
	filled, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for runDriver(filled, d, s.ID, "/usr/bin/test", "-e", "/tmp/filled") != nil {
		select {
		case <-filled.Done():
			return errors.New("the program does not fill its memory")
		case <-time.After(100 * time.Millisecond):
		}
	}
	var pauses, wakes latencies
	for k := range b.rounds(5) {
		snap := fmt.Sprint("large-", k)
		began := time.Now()
		if _, err := d.Snapshot(ctx, s.ID, snap, execution.SnapshotOptions{}); err != nil {
			return err
		}
		pauses = append(pauses, time.Since(began))
		s.Restore = snap
		began = time.Now()
		if _, err := d.Ensure(ctx, s); err != nil {
			return err
		}
		if err := runDriver(ctx, d, s.ID, trueCommand...); err != nil {
			return err
		}
		wakes = append(wakes, time.Since(began))
		if err := d.DeleteSnapshot(ctx, snap); err != nil {
			return err
		}
	}
	b.report.figure("pause with 1 GiB of memory, p50", "ms", pauses.ms(50), 0)
	b.report.figure("wake with 1 GiB of memory: resume to first exec, p50", "ms", wakes.ms(50), wakeLargeGoal)
	return d.Delete(ctx, s.ID)
}

// benchInterpreter executes code in a context through a server.
func benchInterpreter(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	making, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	c := sandbox.NewSandboxesClient(i.client)
	sb, err := claimed(making, c, &sandbox.RunRequest{Template: interpreterTemplate})
	if err != nil {
		return err
	}
	code := interpreter.NewInterpreterClient(i.client)
	run := func() error {
		st, err := code.Run(ctx, &interpreter.RunRequest{Sandbox: sb.GetID(), Code: "1+1"})
		if err != nil {
			return err
		}
		for result := ""; ; {
			e, err := st.Recv()
			switch {
			case err != nil:
				return err
			case e.Result != nil:
				result = e.Result.Formats["text/plain"]
			case e.End != nil:
				if result != "2" {
					return fmt.Errorf("1+1 is %q: %s", result, e.End.Outcome)
				}
				return nil
			}
		}
	}
	if err := run(); err != nil { // starts the context
		return err
	}
	took, err := repeat(ctx, 100, run)
	if err != nil {
		return err
	}
	b.report.figure("1+1 in a context of Python, through RPC, p50", "ms", took.ms(50), interpreterGoal)
	b.report.figure("1+1 in a context of Python, through RPC, p99", "ms", took.ms(99), 0)
	return i.remove(ctx, c, sb)
}
