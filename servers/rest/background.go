package rest

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

const sigkill = 9

// RunningCommand is a command of a session.
type RunningCommand struct {
	ID         string    `json:"id" doc:"Id." example:"2a"`
	Command    []string  `json:"command" doc:"Command line, cut after 512 bytes."`
	Background bool      `json:"background" doc:"It goes on without its caller, and has a stream."`
	StartedAt  time.Time `json:"started_at" doc:"Start."`
	ExitCode   *int64    `json:"exit_code,omitempty" doc:"It has ended with this code; absent: it runs."`
}

// CommandList is the commands of a session.
type CommandList struct {
	Commands []RunningCommand `json:"commands" doc:"Those that run, and those in the background that ended within the last hour, the latest first, at most 128."`
}

// CommandInput names a command in the background.
type CommandInput struct {
	SessionInput
	Command string `path:"command" maxLength:"64" pattern:"^[0-9a-f]+$" doc:"Id of a command in the background." example:"2a"`
}

func registerBackground(a huma.API) {
	const tag = "sessions"
	register(a, op(http.MethodGet, "/sessions/{id}/commands", "list-commands", tag, "List the commands of a session"), listCommands)
	register(a, op(http.MethodDelete, "/sessions/{id}/commands/{command}", "end-command", tag,
		"Kill a command in the background, and forget it and its output", status(http.StatusNoContent)), endCommand)
}

// startCommand starts a command that goes on without its caller.
func startCommand(ctx context.Context, sid id.Sandbox, b *Command) (*body[CommandResult], error) {
	if b.Stdin != "" {
		return nil, errs.New(errs.InvalidArgument, "a command in the background has no stdin").WithHint("write a file, and have the command read that")
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := sandboxes(ctx).Exec(cctx, &sandbox.ExecRequest{
		Sandbox: sid, Command: b.Command, Env: b.Env, Workdir: b.Workdir, User: b.User, Detached: opt.Of(true),
	})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	out := CommandResult{}
	for out.ID == "" {
		m, err := st.Recv()
		switch {
		case err != nil:
			return nil, err
		case m.Started != "" && m.Process == "": // it could not be started, and this call alone knows why
			return commandEnd(st)
		}
		out.ID = m.Process
	}
	return &body[CommandResult]{out}, nil
}

// commandEnd returns the rest of the output of a command, and its end.
func commandEnd(st interface {
	Recv() (*sandbox.ExecOutput, error)
}) (*body[CommandResult], error) {
	var stdout, stderr output
	for {
		m, err := st.Recv()
		if err != nil {
			return nil, err
		}
		stdout.add(m.Stdout)
		stderr.add(m.Stderr)
		if m.ExitCode != nil {
			return &body[CommandResult]{CommandResult{
				ExitCode: m.ExitCode, Reason: string(m.Reason), Stdout: stdout.text(), Stderr: stderr.text(), Truncated: stdout.truncated || stderr.truncated,
			}}, nil
		}
	}
}

func listCommands(ctx context.Context, in *SessionInput) (*body[CommandList], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	resp, err := sandboxes(ctx).Processes(ctx, &sandbox.SandboxRequest{Sandbox: sid})
	if err != nil {
		return nil, err
	}
	out := CommandList{Commands: []RunningCommand{}}
	for _, p := range resp.Processes {
		out.Commands = append(out.Commands, RunningCommand{
			ID: p.ID, Command: append([]string{}, p.Command...), Background: opt.Value(p.Detached), StartedAt: p.StartedAt, ExitCode: p.ExitCode,
		})
	}
	return &body[CommandList]{out}, nil
}

func endCommand(ctx context.Context, in *CommandInput) (*struct{}, error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := sandboxes(ctx).Attach(cctx, &sandbox.AttachRequest{Sandbox: sid, Process: in.Command})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	for signaled := false; ; {
		m, err := st.Recv()
		if err == io.EOF || err == nil && m.ExitCode != nil {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if !signaled {
			signaled = true
			_ = st.Send(&sandbox.ExecInput{Signal: opt.Of(int64(sigkill))}) // fails if the call has ended, which Recv says
		}
	}
}
