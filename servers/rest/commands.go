package rest

import (
	"context"
	"io"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

// maxCommandOutput bounds each of the two outputs of a command that are returned.
const maxCommandOutput = 1 << 20

// exitTimeout is the exit code of a command whose time was over.
const exitTimeout = 124

// Command is a command to run.
type Command struct {
	Command        []string          `json:"command" minItems:"1" maxItems:"4096" doc:"Command line." example:"[\"python3\",\"-c\",\"print(6*7)\"]"`
	Env            map[string]string `json:"env,omitempty" doc:"More environment variables."`
	Workdir        string            `json:"workdir,omitempty" maxLength:"4095" doc:"Working directory; absent: that of the session."`
	User           string            `json:"user,omitempty" maxLength:"256" doc:"User; absent: that of the session."`
	Stdin          string            `json:"stdin,omitempty" maxLength:"1048576" doc:"Standard input."`
	TimeoutSeconds int64             `json:"timeout_seconds,omitempty" minimum:"1" maximum:"3600" default:"300" doc:"The command is ended after this time, with exit code 124; not one in the background."`
	Background     bool              `json:"background,omitempty" doc:"The answer comes at the start, and has the id for the stream of the output; without stdin."`
}

// CommandResult is how a command ended.
type CommandResult struct {
	ID        string `json:"id,omitempty" doc:"Id of a command in the background, of which nothing else is known yet."`
	ExitCode  *int64 `json:"exit_code,omitempty" doc:"Exit code; 128+n for signal n, 124 if the time was over."`
	Reason    string `json:"reason,omitempty" doc:"Why it was ended from outside: oom, ttl, idle, user; absent: it was not, as far as that is known."`
	Stdout    string `json:"stdout" doc:"Output. Bytes that are not UTF-8 are replaced."`
	Stderr    string `json:"stderr" doc:"Error output. Bytes that are not UTF-8 are replaced."`
	Truncated bool   `json:"truncated,omitempty" doc:"There was more than a MiB of one of them; the rest was dropped."`
	TimedOut  bool   `json:"timed_out,omitempty" doc:"Its time was over."`
}

type commandInput struct {
	SessionInput
	Body Command
}

// output collects a bounded output.
type output struct {
	strings.Builder
	truncated bool
}

func (o *output) add(b []byte) {
	room := maxCommandOutput - o.Len()
	if len(b) > room {
		b, o.truncated = b[:room], true
	}
	_, _ = o.Write(b) // never fails
}

func (o *output) text() string { return strings.ToValidUTF8(o.String(), "\uFFFD") }

func runCommand(ctx context.Context, in *commandInput) (*body[CommandResult], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	b := &in.Body
	if b.Background {
		return startCommand(ctx, sid, b)
	}
	cctx, cancel := context.WithTimeout(ctx, time.Duration(b.TimeoutSeconds)*time.Second)
	defer cancel()
	st, err := sandboxes(ctx).Exec(cctx, &sandbox.ExecRequest{
		Sandbox: sid, Command: b.Command, Env: b.Env, Workdir: b.Workdir, User: b.User, Stdin: opt.Of(b.Stdin != ""),
	})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sendInput(st, b.Stdin)
	}()
	var stdout, stderr output
	var reason sandbox.EndReason
	code, err := int64(exitTimeout), error(nil)
	for {
		var m *sandbox.ExecOutput
		if m, err = st.Recv(); err != nil {
			break
		}
		stdout.add(m.Stdout)
		stderr.add(m.Stderr)
		if m.ExitCode != nil {
			code, reason = *m.ExitCode, m.Reason
		}
	}
	timedOut := errs.Is(err, errs.DeadlineExceeded) && ctx.Err() == nil
	cancel() // ends the sending of input that the command did not read
	<-sent
	if err != io.EOF && !timedOut {
		return nil, err
	}
	return &body[CommandResult]{CommandResult{
		ExitCode: &code, Reason: string(reason), Stdout: stdout.text(), Stderr: stderr.text(), Truncated: stdout.truncated || stderr.truncated, TimedOut: timedOut,
	}}, nil
}

// sendInput sends the input of a command in parts. An error ends it: the call
// has ended, whose end says why.
func sendInput(st interface {
	Send(*sandbox.ExecInput) error
	CloseSend() error
}, text string) {
	const part = 32 << 10
	for text != "" {
		n := min(part, len(text))
		if st.Send(&sandbox.ExecInput{Stdin: []byte(text[:n])}) != nil {
			return
		}
		text = text[n:]
	}
	if st.Send(&sandbox.ExecInput{CloseStdin: opt.Of(true)}) == nil {
		_ = st.CloseSend()
	}
}
