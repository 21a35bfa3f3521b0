package interpreter

import (
	"context"
	"crypto/rand"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
)

const (
	chunk        = 32 << 10        // bytes of an event with output
	cleanTimeout = 5 * time.Second // for the removal of a program
)

// runOnce compiles and runs code of a language without contexts, in a directory
// of its own.
func (s *Service) runOnce(ctx context.Context, sb *sandbox.Sandbox, lang *languages.Language, req RunRequest, emit func(*interpreter.RunEvent) error) error {
	sid, dir := sb.GetID(), "/tmp/run-"+strings.ToLower(rand.Text())
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		// What stays goes with the sandbox.
		_, _ = s.execute(ctx, sid, sandboxes.ExecSpec{Command: []string{"rm", "-rf", dir}, NoInput: true}, "", discard)
	}()
	put := sandboxes.ExecSpec{Command: []string{"/bin/sh", "-c", `mkdir "$1" && cat >"$1/$2"`, "sh", dir, lang.File}}
	if code, err := s.execute(ctx, sid, put, req.Code, discard); err != nil || code != 0 {
		return errs.New(errs.FailedPrecondition, "cannot write the program to %s of sandbox %s (exit code %d): %w", dir, sb.ID, code, err)
	}
	env := maps.Clone(lang.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, req.Env)
	spec := sandboxes.ExecSpec{WorkDir: dir, NoInput: true}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		spec.Env = append(spec.Env, k+"="+env[k])
	}
	rctx := ctx
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		rctx, cancel = context.WithTimeout(ctx, req.Timeout)
		defer cancel()
	}
	end := &interpreter.RunEnd{Outcome: interpreter.OutcomeCompleted}
	for _, command := range [][]string{lang.Compile, lang.Run} {
		if len(command) == 0 {
			continue
		}
		spec.Command = lang.Expand(command, dir)
		code, err := s.execute(rctx, sid, spec, "", emit)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if rctx.Err() != nil {
			end.Outcome = interpreter.OutcomeTimeout
			break
		}
		if _, ok := sandboxes.ExitCode(err); ok {
			return errs.New(errs.FailedPrecondition, "sandbox %s has no %s: %w", sb.ID, lang.Title, err).WithHint("create the sandbox of template %s", lang.Template)
		}
		if err != nil {
			return err
		}
		if code != 0 {
			end.Outcome = interpreter.OutcomeFailed
			if err := emit(&interpreter.RunEvent{Error: &interpreter.CodeError{Name: "ExitStatus", Value: strconv.Itoa(code)}}); err != nil {
				return err
			}
			break
		}
	}
	return emit(&interpreter.RunEvent{End: end})
}

func discard(*interpreter.RunEvent) error { return nil }

// execute runs a process with an input and passes on what it prints. It is
// killed when ctx ends.
func (s *Service) execute(ctx context.Context, sid id.Sandbox, spec sandboxes.ExecSpec, input string, emit func(*interpreter.RunEvent) error) (int, error) {
	p, err := s.Node.Exec(ctx, sid, spec)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	var mu sync.Mutex // guards emit
	var g errgroup.Group
	pump := func(r io.Reader, wrap func(string) *interpreter.RunEvent) {
		g.Go(func() error {
			err := copyText(r, func(s string) error {
				mu.Lock()
				defer mu.Unlock()
				return emit(wrap(s))
			})
			if err != nil {
				p.Close() // so that the other stream ends too
			}
			return err
		})
	}
	pump(p.Stdout(), func(s string) *interpreter.RunEvent { return &interpreter.RunEvent{Stdout: s} })
	pump(p.Stderr(), func(s string) *interpreter.RunEvent { return &interpreter.RunEvent{Stderr: s} })
	if !spec.NoInput {
		g.Go(func() error {
			_, err := io.WriteString(p.Stdin(), input)
			if cerr := p.Stdin().Close(); err == nil {
				err = cerr
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return p.Wait(ctx)
}

// copyText passes on text until its end, characters whole. A stream ends early
// only with its process.
func copyText(r io.Reader, emit func(string) error) error {
	buf, n := make([]byte, chunk), 0
	for {
		m, err := r.Read(buf[n:])
		n += m
		whole := n
		if err == nil {
			whole = wholeRunes(buf[:n])
		}
		if whole > 0 {
			if err := emit(strings.ToValidUTF8(string(buf[:whole]), "\uFFFD")); err != nil {
				return err
			}
		}
		n = copy(buf, buf[whole:n])
		if err != nil {
			return nil
		}
	}
}

// wholeRunes returns how many bytes of b come before a character that is cut
// off at the end.
func wholeRunes(b []byte) int {
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}
