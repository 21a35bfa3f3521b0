package buildkit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	frontend "github.com/moby/buildkit/frontend/gateway/pb"
	solver "github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/util/grpcerrors"
	"google.golang.org/grpc/codes"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
)

// Failure is a build that failed by its own fault. It is in the chain of the error of Build.
type Failure struct {
	Step     string // name of the step that failed; empty when it was not a step
	ExitCode int    // of its process; 0 when it did not get that far
	Line     int    // of the Dockerfile; 0 when not known
	Limit    Limit  // that ended it; empty: none
	Log      []string
	Message  string
}

func (f *Failure) Error() string {
	switch {
	case f.Limit != "":
		return fmt.Sprintf("build failed: %s: %s", f.Step, f.Message)
	case f.Step != "" && f.ExitCode > 0:
		return fmt.Sprintf("build failed: %s: exit code %d", f.Step, f.ExitCode)
	case f.Step != "":
		return fmt.Sprintf("build failed: %s: %s", f.Step, f.Message)
	}
	return "build failed: " + f.Message
}

// explain says why a build failed.
func (d *Daemon) explain(ctx context.Context, t *tracker, err error, p *proc.Process, limits Limits) error {
	if cause := ctx.Err(); cause != nil {
		return errs.New(errs.ClassOf(cause), "build: %w", cause)
	}
	var exit *frontend.ExitError
	hasExit := errors.As(err, &exit)
	if d.builderGone(ctx, err, p) {
		return errs.New(errs.Unavailable, "build: the builder went away: %w", err).
			WithHint("it is started again by itself; try again")
	}

	f := &Failure{Message: t.mask.text(message(err))}
	var v *solver.VertexError
	if errors.As(err, &v) {
		if s := t.steps[v.Digest]; s != nil {
			f.Step, f.Log, f.Limit = s.name, s.tail, s.limit
		}
	}
	if f.Step == "" { // an error without its step: the one that failed last
		last := 0
		for _, s := range t.steps {
			if s.failed && s.number > last {
				last, f.Step, f.Log, f.Limit = s.number, s.name, s.tail, s.limit
			}
		}
	}
	if hasExit && exit.ExitCode < frontend.UnknownExitStatus {
		f.ExitCode = int(exit.ExitCode)
	}
	for _, src := range solver.Sources(err) {
		if len(src.Ranges) > 0 && src.Ranges[0].Start != nil {
			f.Line = int(src.Ranges[0].Start.Line)
		}
	}
	hint := f.hint() // reads the lines that the user is not shown
	f.Log = causeLines(f.Log)
	if f.Limit != "" {
		f.Message, hint = limits.explain(f.Limit)
	}
	e := errs.New(errs.FailedPrecondition, "%w", error(f)).With("step", f.Step)
	if f.Limit != "" {
		e = e.With("limit", string(f.Limit))
	}
	if f.ExitCode > 0 {
		e = e.With("exit_code", strconv.Itoa(f.ExitCode))
	}
	if hint != "" {
		e = e.WithHint("%s", hint)
	}
	return e
}

// builderGone tells a failed build from a builder that failed: buildkitd
// died, or containerd below it.
func (d *Daemon) builderGone(ctx context.Context, err error, p *proc.Process) bool {
	if grpcerrors.Code(err) == codes.Unavailable {
		// Its end is seen a moment after its connections break. A caller that tries again then finds it ended, not ending.
		select {
		case <-p.Done():
		case <-time.After(time.Second):
		}
		return true
	}
	select {
	case <-p.Done():
		return true
	default:
	}
	below, belowErr := d.containerdProcess(ctx)
	return belowErr != nil || !d.startedOn(below)
}

// message is what BuildKit says, without what it was doing around it.
func message(err error) string {
	s := err.Error()
	for _, prefix := range []string{"failed to solve: ", "rpc error: code = Unknown desc = ", "failed to solve: "} {
		s = strings.TrimPrefix(s, prefix)
	}
	return s
}
