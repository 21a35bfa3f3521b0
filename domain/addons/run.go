package addons

import (
	"bytes"
	"context"
	"io"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// maxOutput bounds what is read of a command's output, in bytes.
const maxOutput = 64 << 10

// Runner runs a command in a sandbox with an input, and returns what it printed. A
// command that fails is FailedPrecondition with its last words.
type Runner func(ctx context.Context, sb id.Sandbox, input string, command ...string) (string, error)

// RunIn is the Runner of a server.
func RunIn(s *sandboxes.Service) Runner {
	return func(ctx context.Context, sb id.Sandbox, input string, command ...string) (string, error) {
		_, p, err := s.Exec(ctx, sandboxes.ExecRequest{Sandbox: sb, Command: command, NoInput: input == "", Internal: true})
		if err != nil {
			return "", err
		}
		defer p.Close()
		if input != "" {
			if _, err := io.WriteString(p.Stdin(), input); err != nil {
				return "", errs.New(errs.Unavailable, "write to %s: %w", command[0], err)
			}
			if err := p.Stdin().Close(); err != nil {
				return "", errs.New(errs.Unavailable, "write to %s: %w", command[0], err)
			}
		}
		var out, words bytes.Buffer
		read := make(chan error, 1)
		go func() {
			_, err := io.Copy(&words, io.LimitReader(p.Stderr(), maxOutput))
			read <- err
		}()
		_, err = io.Copy(&out, io.LimitReader(p.Stdout(), maxOutput))
		if e := <-read; err == nil {
			err = e
		}
		if err != nil {
			return "", errs.New(errs.Unavailable, "read the output of %s: %w", command[0], err)
		}
		code, err := p.Wait(ctx)
		if err != nil {
			return "", err
		}
		if code != 0 {
			return "", errs.New(errs.FailedPrecondition, "%s ended with exit code %d: %s", command[0], code, strings.TrimSpace(words.String()))
		}
		return out.String(), nil
	}
}

// Sandbox returns the ready sandbox of the app that runs an addon, nil if there is none.
func Sandbox(ctx context.Context, r entity.Reader, runs *app.App) (*sandbox.Sandbox, error) {
	all, err := sandboxes.OfApp(ctx, r, runs)
	if err != nil {
		return nil, err
	}
	for _, sb := range all {
		if sb.Spec.AppVersion == runs.Status.Active() && sb.Spec.Pool != "" && sb.Status.Ready && !sb.Status.Phase.Ended() {
			return sb, nil
		}
	}
	return nil, nil
}
