package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

const (
	// defaultWait is the time for which output of a process that runs is awaited.
	defaultWait = time.Second
	// maxWait is the longest time that a caller may name.
	maxWait = 5 * time.Minute
	// stopWait is the time between SIGTERM and SIGKILL.
	stopWait = 5 * time.Second

	sigterm = 15
	sigkill = 9
)

type startInput struct {
	Sandbox string            `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Command string            `json:"command" jsonschema:"command line for /bin/sh"`
	Workdir string            `json:"workdir,omitempty" jsonschema:"directory in which it runs; default: the sandbox's working directory"`
	User    string            `json:"user,omitempty" jsonschema:"user, by name or uid:gid; default: the sandbox's"`
	Env     map[string]string `json:"env,omitempty" jsonschema:"more environment variables"`
}

type startOutput struct {
	Sandbox string `json:"sandbox"`
	Process string `json:"process" jsonschema:"id of the process, for read_process and stop_process"`
}

func (s *session) startProcess(ctx context.Context, _ *call, in *startInput) (*startOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	st, err := s.sandboxes.Exec(ctx, &sandbox.ExecRequest{
		Sandbox: sb.GetID(), Command: []string{"/bin/sh", "-c", in.Command}, Workdir: in.Workdir, User: in.User, Env: in.Env, Detached: new(true),
	})
	if err != nil {
		return nil, err
	}
	defer st.Close() // the process goes on
	for {
		m, err := st.Recv()
		switch {
		case err != nil:
			return nil, lost(err)
		case m.Started != "" && m.Process == "":
			return nil, notStarted(st)
		case m.Started != "":
			return &startOutput{string(m.Started), m.Process}, nil
		}
	}
}

// notStarted returns why a process could not be started.
func notStarted(st execStream) error {
	why := &bounded{max: DefaultMaxOutput}
	for {
		m, err := st.Recv()
		if err != nil || m.ExitCode != nil {
			return errs.New(errs.FailedPrecondition, "the command was not started: %s", why)
		}
		_, _ = why.Write(m.Stderr) // it never fails
	}
}

// lost returns the error of a call whose stream ended too early.
func lost(err error) error {
	if errors.Is(err, io.EOF) {
		return errs.New(errs.Unavailable, "the server ended the call too early").WithHint("call the tool again")
	}
	return err
}

type readProcessInput struct {
	Sandbox     string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Process     string `json:"process" jsonschema:"id of the process, as start_process returned it"`
	WaitSeconds int64  `json:"wait_seconds,omitempty" jsonschema:"seconds to wait for its end; default 1"`
}

type processState struct {
	Running   bool   `json:"running"`
	ExitCode  *int64 `json:"exit_code,omitempty" jsonschema:"exit code, if it has ended; 128+n for signal n"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated" jsonschema:"output was cut in its middle, where a mark says so"`
}

func (s *session) readProcess(ctx context.Context, c *call, in *readProcessInput) (*processState, error) {
	wait := cmp.Or(time.Duration(in.WaitSeconds)*time.Second, defaultWait)
	if wait < 0 || wait > maxWait {
		return nil, errs.New(errs.InvalidArgument, "wait_seconds is %d, it may be 1 to %d", in.WaitSeconds, maxWait/time.Second)
	}
	return s.attach(ctx, c, in.Sandbox, in.Process, wait)
}

type stopProcessInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Process string `json:"process" jsonschema:"id of the process, as start_process returned it"`
}

func (s *session) stopProcess(ctx context.Context, c *call, in *stopProcessInput) (*processState, error) {
	return s.attach(ctx, c, in.Sandbox, in.Process, stopWait, sigterm, sigkill)
}

// attach reads the output of a process for a time, or as long after each of the
// signals that it sends. A process that does not end goes on.
func (s *session) attach(ctx context.Context, c *call, name, process string, wait time.Duration, signals ...int64) (*processState, error) {
	sb, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st, err := s.sandboxes.Attach(ctx, &sandbox.AttachRequest{Sandbox: sb.GetID(), Process: process})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	out, stdout, stderr := &processState{Running: true}, &bounded{max: s.MaxOutput}, &bounded{max: s.MaxOutput}
	finish := func() *processState {
		out.Stdout, out.Stderr, out.Truncated = stdout.String(), stderr.String(), stdout.cut() > 0 || stderr.cut() > 0
		return out
	}
	over := make(chan struct{})
	defer func() { cancel(nil); <-over }()
	started := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-started:
		case <-ctx.Done():
			return
		}
		for i := range max(1, len(signals)) {
			if i < len(signals) {
				_ = st.Send(&sandbox.ExecInput{Signal: &signals[i]}) // Recv returns why a call has ended
			}
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
		cancel(errTime)
	}()
	for {
		m, err := st.Recv()
		switch {
		case err != nil && errors.Is(context.Cause(ctx), errTime):
			return finish(), nil
		case err != nil:
			return nil, lost(err)
		case m.ExitCode != nil:
			out.Running, out.ExitCode = false, m.ExitCode
			return finish(), nil
		case m.Started != "":
			close(started)
		}
		_, _ = stdout.Write(m.Stdout) // it never fails
		_, _ = stderr.Write(m.Stderr)
		c.say("running, %d bytes of output", stdout.total+stderr.total)
	}
}
