package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// defaultLimit is the longest time of a process whose caller names none.
	defaultLimit = 5 * time.Minute
	// maxLimit is the longest time that a caller may name.
	maxLimit = 24 * time.Hour
	// exitTimeout is the exit code of a process whose time was over, as timeout(1)
	// has it.
	exitTimeout = 124
	// inputChunk is the size of a message of input, in bytes.
	inputChunk = 32 << 10
)

type processInput struct {
	Env            map[string]string `json:"env,omitempty" jsonschema:"more environment variables"`
	Stdin          string            `json:"stdin,omitempty" jsonschema:"standard input; default: empty"`
	TimeoutSeconds int64             `json:"timeout_seconds,omitempty" jsonschema:"it is ended after so many seconds, with exit code 124; default 300"`
}

// limit returns the longest time of a process.
func (s *session) limit(in *processInput) (time.Duration, error) {
	d := time.Duration(in.TimeoutSeconds) * time.Second
	if in.TimeoutSeconds < 0 || in.TimeoutSeconds > int64(maxLimit/time.Second) {
		return 0, errs.New(errs.InvalidArgument, "timeout_seconds is %d, it may be 1 to %d", in.TimeoutSeconds, maxLimit/time.Second)
	}
	return cmp.Or(d, s.Limits.RunTimeout, defaultLimit), nil
}

type runOutput struct {
	Sandbox     string   `json:"sandbox" jsonschema:"id of the sandbox"`
	ExitCode    int64    `json:"exit_code" jsonschema:"exit code; 128+n for signal n, 124 if its time was over"`
	Stdout      string   `json:"stdout"`
	Stderr      string   `json:"stderr"`
	StdoutBytes int64    `json:"stdout_bytes" jsonschema:"length of the whole output"`
	StderrBytes int64    `json:"stderr_bytes" jsonschema:"length of the whole error output"`
	Truncated   bool     `json:"truncated" jsonschema:"output was cut in its middle, where a mark says so"`
	TimedOut    bool     `json:"timed_out" jsonschema:"it was ended because its time was over"`
	Seconds     float64  `json:"seconds" jsonschema:"time that it ran"`
	Notes       []string `json:"notes,omitempty" jsonschema:"events of the sandbox, such as the reason of its end"`
}

// content shows the output as a terminal would.
func (o *runOutput) content() []sdk.Content {
	var b strings.Builder
	part := func(title, text string) {
		if text == "" {
			return
		}
		if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
			b.WriteByte('\n')
		}
		if title != "" {
			b.WriteString("[" + title + "]\n")
		}
		b.WriteString(text)
	}
	part("", o.Stdout)
	part("stderr", o.Stderr)
	for _, n := range o.Notes {
		part("", "["+n+"]")
	}
	end := fmt.Sprintf("exit code %d", o.ExitCode)
	if o.TimedOut {
		end = "ended because its time was over, " + end
	}
	if o.ExitCode != 0 || b.Len() == 0 {
		part("", "["+end+"]")
	}
	return []sdk.Content{&sdk.TextContent{Text: b.String()}}
}

type execStream = rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]

// errTime ends a process whose time is over.
var errTime = errors.New("the time is over")

// run runs a process to its end, or until its time is over or ctx ends: then the
// server ends it.
func (s *session) run(ctx context.Context, c *call, in *processInput, open func(context.Context) (execStream, error)) (*runOutput, error) {
	limit, err := s.limit(in)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st, err := open(ctx)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer st.Close()
	out, stdout, stderr := &runOutput{}, &bounded{max: s.MaxOutput}, &bounded{max: s.MaxOutput}
	start := time.Now()
	finish := func() *runOutput {
		out.Stdout, out.Stderr, out.StdoutBytes, out.StderrBytes = stdout.String(), stderr.String(), stdout.total, stderr.total
		out.Truncated = stdout.cut() > 0 || stderr.cut() > 0
		out.Seconds = time.Since(start).Seconds()
		return out
	}
	for {
		m, err := st.Recv()
		switch {
		case err != nil && errors.Is(context.Cause(ctx), errTime):
			out.TimedOut, out.ExitCode = true, exitTimeout
			return finish(), nil
		case errors.Is(err, io.EOF):
			return nil, errs.New(errs.Unavailable, "the server ended the call without the end of the process").WithHint("call the tool again")
		case err != nil:
			return nil, err
		case m.ExitCode != nil:
			out.ExitCode = *m.ExitCode
			return finish(), nil
		case m.Note != "":
			out.Notes = append(out.Notes, m.Note)
			c.say("%s", m.Note)
		case m.Started != "":
			out.Sandbox, start = string(m.Started), time.Now()
			timer := time.AfterFunc(limit, func() { cancel(errTime) })
			defer timer.Stop()
			if in.Stdin != "" {
				wg.Go(func() { sendInput(st, in.Stdin) })
			}
		}
		_, _ = stdout.Write(m.Stdout) // it never fails
		_, _ = stderr.Write(m.Stderr)
		if n := stdout.total + stderr.total; n > 0 {
			c.say("running, %d bytes of output", n)
		}
	}
}

// sendInput sends the input of a process. A process that ends before it has read
// it ends the call, whose reader returns the reason.
func sendInput(st execStream, text string) {
	for len(text) > 0 {
		n := min(len(text), inputChunk)
		if st.Send(&sandbox.ExecInput{Stdin: []byte(text[:n])}) != nil {
			return
		}
		text = text[n:]
	}
	_ = st.Send(&sandbox.ExecInput{CloseStdin: new(true)})
}

type codeInput struct {
	Language string   `json:"language" jsonschema:"language of the code"`
	Code     string   `json:"code" jsonschema:"the program"`
	Sandbox  string   `json:"sandbox,omitempty" jsonschema:"id or name of the sandbox, whose template must have the language; default: a new one, deleted afterwards"`
	File     string   `json:"file,omitempty" jsonschema:"name of the program's file; default: main with the language's extension"`
	Args     []string `json:"args,omitempty" jsonschema:"arguments of the program"`
	networkInput
	processInput
}

func (s *session) runCode(ctx context.Context, c *call, in *codeInput) (*runOutput, error) {
	lang, err := languages.Lookup(in.Language)
	if err != nil {
		return nil, err
	}
	if in.Sandbox != "" {
		if in.Network != "" || len(in.AllowHosts) > 0 {
			return nil, errs.New(errs.InvalidArgument, "network and allow_hosts are those of the sandbox").WithHint("state them when it is created, or run the code without sandbox")
		}
		return s.runCodeIn(ctx, c, lang, in)
	}
	req, err := s.request(in.networkInput, lang.Template)
	if err != nil {
		return nil, err
	}
	req.Env = in.Env
	c.say("waiting for a sandbox of template %s", lang.Template)
	return s.run(ctx, c, &in.processInput, func(ctx context.Context) (execStream, error) {
		return s.sandboxes.RunCode(ctx, &sandbox.RunCodeRequest{
			Sandbox: req, Language: lang.Name, Code: []byte(in.Code), File: in.File, Args: in.Args,
			Stdin: new(in.Stdin != ""), StartTimeout: new(startTimeout),
		})
	})
}

// runCodeIn runs a program in a sandbox.
func (s *session) runCodeIn(ctx context.Context, c *call, lang languages.Language, in *codeInput) (*runOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if in.File != "" {
		if in.File != path.Base(in.File) || in.File == "." || in.File == ".." || in.File == "/" {
			return nil, errs.New(errs.InvalidArgument, "file is %q, which is not the name of a file", in.File).WithHint("give a name without a directory; write_file writes files elsewhere")
		}
		lang.File = in.File
	}
	dir := sb.Spec.Template.Workdir
	if _, err := s.write(ctx, &sandbox.WriteFileRequest{Sandbox: sb.GetID(), Path: path.Join(dir, lang.File)}, []byte(in.Code)); err != nil {
		return nil, err
	}
	return s.exec(ctx, c, sb.GetID(), &in.processInput, sandbox.ExecRequest{
		Command: lang.Command(dir, in.Args), Workdir: dir, Env: merge(lang.Env, in.Env),
	})
}

func merge(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil {
		return b
	}
	maps.Copy(out, b)
	return out
}

// exec runs a process in a sandbox.
func (s *session) exec(ctx context.Context, c *call, sid id.Sandbox, in *processInput, req sandbox.ExecRequest) (*runOutput, error) {
	req.Sandbox, req.Stdin = sid, new(in.Stdin != "")
	return s.run(ctx, c, in, func(ctx context.Context) (execStream, error) { return s.sandboxes.Exec(ctx, &req) })
}

type commandInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Command string `json:"command" jsonschema:"command line for /bin/sh"`
	Workdir string `json:"workdir,omitempty" jsonschema:"directory in which it runs; default: the sandbox's working directory"`
	User    string `json:"user,omitempty" jsonschema:"user, by name or uid:gid; default: the sandbox's"`
	processInput
}

func (s *session) runCommand(ctx context.Context, c *call, in *commandInput) (*runOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	return s.exec(ctx, c, sb.GetID(), &in.processInput, sandbox.ExecRequest{
		Command: []string{"/bin/sh", "-c", in.Command}, Workdir: in.Workdir, User: in.User, Env: in.Env,
	})
}
