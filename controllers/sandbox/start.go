package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/text"
)

const (
	// startTag is the tag of the process of a start command.
	startTag = "runtime/start"
	// maxStartOutput bounds how much of each stream of it is read for a failure,
	// in bytes, and startOutputTimeout how long that may take.
	maxStartOutput     = 256 << 10
	startOutputTimeout = 2 * time.Second
	sigkill            = 9
)

// hasStart reports whether a sandbox has a start command.
func hasStart(sb *sandbox.Sandbox) bool { return len(sb.Spec.Template.Start) > 0 }

// startProcess returns the process of the start command, or nil.
func (r *Reconciler) startProcess(ctx context.Context, sb *sandbox.Sandbox) (*execution.ProcessInfo, error) {
	list, err := r.Driver.Processes(ctx, string(sb.ID))
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(list, func(p execution.ProcessInfo) bool { return p.Tag == startTag }); i >= 0 {
		return &list[i], nil
	}
	return nil, nil
}

// start executes the start command of a sandbox that was not ready yet, once:
// the agent lists the process that an earlier server started. done says that
// the sandbox failed.
func (r *Reconciler) start(ctx context.Context, sb *sandbox.Sandbox) (done bool, err error) {
	p, err := r.startProcess(ctx, sb)
	if err == nil && p == nil {
		err = r.execStart(ctx, sb)
	}
	switch {
	case errs.Is(err, errs.InvalidArgument): // there is no such program
		_, err = r.fail(ctx, sb, err)
		return true, err
	case err != nil:
		return false, err
	case p != nil && p.Exit != nil && p.Exit.Code != 0: // a daemon that goes to the background ends with 0
		return true, r.notStarted(ctx, sb, fmt.Sprintf("ended with exit code %d", p.Exit.Code))
	case !probed(sb):
		_, err = r.passed(ctx, sb)
	}
	return false, err
}

func (r *Reconciler) execStart(ctx context.Context, sb *sandbox.Sandbox) error {
	p, err := r.Driver.Exec(ctx, string(sb.ID), execution.ExecSpec{
		Command: sb.Spec.Template.Start, NoInput: true, Detached: true, Tag: startTag,
	})
	if err != nil {
		return errs.Wrap(err, "start command")
	}
	p.Detach()
	return nil
}

// notStarted fails a sandbox because of its start command, with the last lines
// that the command printed.
func (r *Reconciler) notStarted(ctx context.Context, sb *sandbox.Sandbox, why string) error {
	sb.Status.LogTail = r.startOutput(ctx, sb)
	_, err := r.fail(ctx, sb, errs.New(errs.FailedPrecondition, "its start command %s", why))
	return err
}

// startOutput ends the start command and returns the last lines of its output,
// those of stderr last.
func (r *Reconciler) startOutput(ctx context.Context, sb *sandbox.Sandbox) []string {
	ctx, cancel := context.WithTimeout(ctx, startOutputTimeout)
	defer cancel()
	info, err := r.startProcess(ctx, sb)
	if err != nil || info == nil {
		return nil
	}
	p, err := r.Driver.Attach(ctx, string(sb.ID), info.ID, 0, 0)
	if err != nil {
		return nil
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { p.Close() })()
	_ = p.Signal(ctx, sigkill) // it may have ended
	var lines []string
	for _, stream := range []io.Reader{p.Stdout(), p.Stderr()} {
		b, _ := io.ReadAll(io.LimitReader(stream, maxStartOutput)) // whatever was read helps
		for line := range strings.Lines(string(b)) {
			lines = append(lines, text.Cut(strings.TrimRight(line, "\r\n"), maxTailLine))
		}
	}
	return lines[max(0, len(lines)-logTail):]
}

// probeInside probes a sandbox with a start command, or on a runner, through its agent: its
// network may be closed, and the server may listen on the loopback only. What a runner's
// sandbox serves is reached by the same way.
func (r *Reconciler) probeInside(ctx context.Context, sb *sandbox.Sandbox, p sandbox.Probe) error {
	if p.Kind == sandbox.ProbeKindExec {
		return r.probeCommand(ctx, sb, p.Command)
	}
	return check(ctx, "localhost", p, func(ctx context.Context) (net.Conn, error) {
		return r.Driver.Dial(ctx, string(sb.ID), int(p.Port))
	})
}

// probeCommand executes a command that exits with 0 if the sandbox is ready.
func (r *Reconciler) probeCommand(ctx context.Context, sb *sandbox.Sandbox, command []string) error {
	p, err := r.Driver.Exec(ctx, string(sb.ID), execution.ExecSpec{Command: command, NoInput: true})
	if err != nil {
		return err
	}
	defer p.Close()
	for _, stream := range []io.Reader{p.Stdout(), p.Stderr()} {
		go func() { _, _ = io.Copy(io.Discard, stream) }() // ends with the process
	}
	code, err := p.Wait(ctx)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not end in time", command[0])
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("%s exits with %d", command[0], code)
	}
	return nil
}

// usedProcesses returns how many of the n running processes that users
// executed there are: all but the start command.
func (r *Reconciler) usedProcesses(ctx context.Context, sb *sandbox.Sandbox, n int) (int, error) {
	if n == 0 || !hasStart(sb) {
		return n, nil
	}
	p, err := r.startProcess(ctx, sb)
	if err != nil || p == nil || p.Exit != nil {
		return n, err
	}
	return n - 1, nil
}
