// Package dnshook sets TXT records by a command of the operator, who knows how the
// zone is kept.
package dnshook

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/errs"
)

const (
	// Timeout bounds one call of the command.
	Timeout   = 3 * time.Minute
	maxOutput = 500 // bytes of the command's output in an error
)

// Hook is the command and its arguments. It gets three more: present or cleanup, the
// name of the record, and its value. It may be called twice with the same ones, and
// returns from present when the zone's name servers answer with the record.
type Hook struct{ Command []string }

// Present sets a record.
func (h Hook) Present(ctx context.Context, name, value string) error {
	return h.run(ctx, "present", name, value)
}

// Cleanup removes a record.
func (h Hook) Cleanup(ctx context.Context, name, value string) error {
	return h.run(ctx, "cleanup", name, value)
}

func (h Hook) run(ctx context.Context, args ...string) error {
	if len(h.Command) == 0 {
		return errs.New(errs.FailedPrecondition, "there is no command for dns-01").WithHint("set acme.dns_command")
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.Command[0], append(slices.Clone(h.Command[1:]), args...)...)
	// Whatever the command started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errs.New(errs.DeadlineExceeded, "acme.dns_command %s %s took longer than %s: %s", args[0], args[1], Timeout, out)
	}
	return errs.New(errs.Unavailable, "acme.dns_command %s %s: %w: %s", args[0], args[1], err, out)
}

// tail keeps the last bytes that were written.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-maxOutput):]...)
	t.b = t.b[max(0, len(t.b)-maxOutput):]
	return len(p), nil
}

func (t *tail) String() string {
	return strings.ToValidUTF8(string(bytes.TrimSpace(t.b)), "\uFFFD")
}
