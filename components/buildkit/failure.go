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

	f := &Failure{Message: message(err)}
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
	hint := f.hint()
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
		// Its end is seen a moment after its connections break. Who tries again then finds it ended, not ending.
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

// hint says what to do about failures that are seen often.
func (f *Failure) hint() string {
	all := f.Message + "\n" + strings.Join(f.Log, "\n")
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(all, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("failed to resolve source metadata", "failed to do request"):
		return "the base image could not be fetched: no registry is reachable and no local image has this name"
	case has("no space left on device"):
		return "the disk of the server is full: `r doctor` says what uses it"
	case f.ExitCode == 137:
		return "the step was killed, most likely for using too much memory"
	case has("apk: not found", "apk: command not found"):
		return "the local base images are made from Debian packages: use apt-get instead of apk"
	case has("certificate signed by unknown authority", "unable to get local issuer certificate", "CERTIFICATE_VERIFY_FAILED"):
		return "a server's certificate is not trusted: add its authority to the host's CA bundle"
	case has("npm ci") && has("package-lock.json"):
		return "package.json and package-lock.json do not agree: run `npm install` and commit both"
	case has("missing go.sum entry", "go: updates to go.mod needed"):
		return "go.mod and go.sum do not agree: run `go mod tidy` and deploy again"
	case f.ExitCode == 127:
		return "a command was not found: is what provides it installed in an earlier step?"
	case has("failed to calculate checksum of ref", "failed to compute cache key"):
		return "a file that is copied is not in the source: is it ignored by .gitignore or .dockerignore?"
	}
	return ""
}
