package interpreter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/text"
)

const (
	// Port is the port in a sandbox, on its loopback, on which the server of
	// contexts listens. A connection carries one request and its answer, lines of
	// JSON: the events of an execution, or one line. If the connection is closed
	// before, the execution is interrupted.
	Port = 49999
	// command starts the server and returns when it listens; it does nothing if one
	// listens already.
	command = "runtime-interpreter"

	maxEvent    = 12 << 20  // bytes of an event
	maxReply    = 256 << 10 // bytes of another answer
	maxOutput   = 64 << 20  // bytes of the events of an execution
	maxFormats  = 32        // of a result
	maxContexts = 64        // of a sandbox
	maxWord     = 64        // bytes of ids and languages
	maxMessage  = 1000      // bytes of a reason

	startTimeout = 90 * time.Second // for the server's start, and for every answer but that of an execution
)

// request is what the server of a sandbox is asked for.
type request struct {
	Op       string            `json:"op"`
	Code     *string           `json:"code,omitempty"`
	Language string            `json:"language,omitempty"`
	Context  string            `json:"context,omitempty"`
	Workdir  string            `json:"workdir,omitempty"`
	Env      map[string]string `json:"env,omitempty"`      // of the process, if one is started
	EnvVars  map[string]string `json:"env_vars,omitempty"` // of the execution
	Timeout  float64           `json:"timeout,omitempty"`  // seconds
}

// event is a line of an execution.
type event struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	Result *struct {
		Formats formats `json:"formats"`
		Main    bool    `json:"main"`
	} `json:"result"`
	Error *struct {
		Name      string `json:"name"`
		Value     string `json:"value"`
		Traceback string `json:"traceback"`
	} `json:"error"`
	End *struct {
		Outcome   interpreter.Outcome `json:"outcome"`
		Count     int64               `json:"count"`
		StateLost bool                `json:"state_lost"`
	} `json:"end"`
	Failed *failure `json:"failed"`
}

// reply is an answer of one line.
type reply struct {
	Context  *codeContext  `json:"context"`
	Contexts []codeContext `json:"contexts"`
	Failed   *failure      `json:"failed"`
}

type codeContext struct {
	ID         string  `json:"id"`
	Language   string  `json:"language"`
	Workdir    string  `json:"workdir"`
	Busy       bool    `json:"busy"`
	Executions int64   `json:"executions"`
	Created    float64 `json:"created"` // seconds since 1970
}

type failure struct {
	Class   string `json:"class"`
	Message string `json:"message"`
}

// formats is content by media type.
type formats map[string]string

var mediaType = regexp.MustCompile(`^[a-z]{1,20}/[-+.\w]{1,80}$`)

// UnmarshalJSON takes at most maxFormats: a map is many times larger than its text.
func (f *formats) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("formats are no object")
	}
	*f = formats{}
	for d.More() {
		var value string
		name, err := d.Token()
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return err
		}
		if n, _ := name.(string); !mediaType.MatchString(n) || len(*f) == maxFormats {
			return errors.New("formats are not a few media types")
		} else {
			(*f)[n] = value
		}
	}
	return nil
}

// errNonsense is the error for a server that does not keep to its protocol.
func errNonsense(sb *sandbox.Sandbox, why error) error {
	return errs.New(errs.Unavailable, "what listens on port %d of sandbox %s is not its interpreter: %w", Port, sb.ID, why).
		WithHint("a program of the sandbox may have taken the interpreter's place; use another sandbox")
}

// errFailed is the server's reason for a refusal.
func errFailed(sb *sandbox.Sandbox, f *failure) error {
	class := errs.Class(f.Class)
	switch class {
	case errs.NotFound, errs.InvalidArgument, errs.ResourceExhausted, errs.Unimplemented:
	default:
		class = errs.Unavailable
	}
	message := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text.Cut(f.Message, maxMessage))
	return errs.New(class, "the interpreter of sandbox %s: %s", sb.ID, message)
}

// connect sends a request to the server of a sandbox, which it starts if need
// be.
func (s *Service) connect(ctx context.Context, sb *sandbox.Sandbox, w request) (io.ReadWriteCloser, error) {
	line, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	conn, err := s.Node.Dial(ctx, sb.GetID(), Port)
	if errs.Is(err, errs.FailedPrecondition) {
		if err := s.startServer(ctx, sb.GetID()); err != nil {
			return nil, err
		}
		conn, err = s.Node.Dial(ctx, sb.GetID(), Port)
	}
	if err != nil {
		return nil, errs.Wrap(err, "reach the interpreter of sandbox %s", sb.ID)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := conn.Write(append(line, '\n')); err != nil {
		conn.Close()
		return nil, errs.New(errs.Unavailable, "ask the interpreter of sandbox %s: %w", sb.ID, err)
	}
	return conn, nil
}

// startServer starts the server and returns when it listens.
func (s *Service) startServer(ctx context.Context, sid id.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := s.Node.Exec(ctx, sid, sandboxes.ExecSpec{Command: []string{command}, NoInput: true})
	if _, ok := sandboxes.ExitCode(err); ok {
		return errs.New(errs.FailedPrecondition, "sandbox %s has no code interpreter", sid).
			WithHint("create the sandbox of template code-interpreter-v1, or of one that is built on it")
	}
	if err != nil {
		return err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	go func() { _, _ = io.Copy(io.Discard, p.Stdout()) }()        // ends with the process
	said, _ := io.ReadAll(io.LimitReader(p.Stderr(), maxMessage)) // Wait returns the failure
	go func() { _, _ = io.Copy(io.Discard, p.Stderr()) }()        // ends with the process
	code, err := p.Wait(ctx)
	if err != nil {
		return errs.Wrap(err, "start the interpreter of sandbox %s", sid)
	}
	if code != 0 {
		return errs.New(errs.Unavailable, "the interpreter of sandbox %s does not start (exit code %d): %q", sid, code, said)
	}
	return nil
}

// run has the server execute code.
func (s *Service) run(ctx context.Context, sb *sandbox.Sandbox, w request, emit func(*interpreter.RunEvent) error) error {
	conn, err := s.connect(ctx, sb, w)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	lines, total := bufio.NewReaderSize(conn, 32<<10), 0
	for {
		line, err := readLine(lines, maxEvent)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return s.lost(ctx, sb, err)
		}
		if total += len(line); total > maxOutput {
			return errs.New(errs.ResourceExhausted, "the code prints more than %d MiB", maxOutput>>20).WithHint("write to a file of the sandbox")
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return errNonsense(sb, err)
		}
		if e.Failed != nil {
			return errFailed(sb, e.Failed)
		}
		out, err := e.checked()
		if err != nil {
			return errNonsense(sb, err)
		}
		if err := emit(out); err != nil || e.End != nil {
			return err
		}
	}
}

// lost returns the error for a connection that ended before its answer did.
func (s *Service) lost(ctx context.Context, sb *sandbox.Sandbox, err error) error {
	if errors.Is(err, errTooLong) {
		return errNonsense(sb, err)
	}
	if _, gone := s.Running(ctx, sb.GetID()); gone != nil {
		return gone
	}
	return errs.New(errs.Unavailable, "the interpreter of sandbox %s is gone: %w", sb.ID, err).WithHint("the next execution starts it again, without variables")
}

// checked returns the event for the caller. Every message of an execution has
// one of the fields.
func (e *event) checked() (*interpreter.RunEvent, error) {
	out := &interpreter.RunEvent{Stdout: e.Stdout, Stderr: e.Stderr}
	set := 0
	for _, is := range []bool{e.Stdout != "", e.Stderr != "", e.Result != nil, e.Error != nil, e.End != nil} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return nil, errors.New("an event is not of one kind")
	case e.Result != nil && len(e.Result.Formats) == 0:
		return nil, errors.New("a result without formats")
	case e.Result != nil:
		out.Result = &interpreter.Result{Formats: e.Result.Formats, Main: &e.Result.Main}
	case e.Error != nil:
		out.Error = &interpreter.CodeError{Name: text.Cut(e.Error.Name, maxMessage), Value: e.Error.Value, Traceback: e.Error.Traceback}
		if out.Error.Name == "" {
			out.Error.Name = "Error"
		}
	case e.End != nil:
		if !e.End.Outcome.Valid() || e.End.Count < 0 {
			return nil, errors.New("an unknown end")
		}
		out.End = &interpreter.RunEnd{Outcome: e.End.Outcome, Count: e.End.Count, StateLost: &e.End.StateLost}
	}
	return out, nil
}

// ask returns an answer of one line.
func (s *Service) ask(ctx context.Context, sb *sandbox.Sandbox, w request) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := s.connect(ctx, sb, w)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	line, err := readLine(bufio.NewReader(conn), maxReply)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, s.lost(ctx, sb, err)
	}
	var r reply
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, errNonsense(sb, err)
	}
	if r.Failed != nil {
		return nil, errFailed(sb, r.Failed)
	}
	return &r, nil
}

// one returns the context of which an answer is.
func (s *Service) one(ctx context.Context, sb *sandbox.Sandbox, w request) (*interpreter.CodeContext, error) {
	r, err := s.ask(ctx, sb, w)
	if err != nil {
		return nil, err
	}
	if r.Context == nil {
		return nil, errNonsense(sb, errors.New("an answer without a context"))
	}
	return r.Context.checked(sb)
}

func (r *reply) contexts(sb *sandbox.Sandbox) ([]interpreter.CodeContext, error) {
	if len(r.Contexts) > maxContexts {
		return nil, errNonsense(sb, errors.New("too many contexts"))
	}
	var out []interpreter.CodeContext
	for _, c := range r.Contexts {
		one, err := c.checked(sb)
		if err != nil {
			return nil, err
		}
		out = append(out, *one)
	}
	return out, nil
}

var word = regexp.MustCompile(`^[-\w]+$`)

func (c codeContext) checked(sb *sandbox.Sandbox) (*interpreter.CodeContext, error) {
	for _, w := range []string{c.ID, c.Language} {
		if len(w) > maxWord || !word.MatchString(w) {
			return nil, errNonsense(sb, errors.New("a context without id or language"))
		}
	}
	if c.Executions < 0 || len(c.Workdir) > 4096 {
		return nil, errNonsense(sb, errors.New("an unknown context"))
	}
	out := &interpreter.CodeContext{ID: c.ID, Language: c.Language, Workdir: c.Workdir, Busy: &c.Busy, Executions: c.Executions}
	if c.Created > 0 && c.Created < 1<<40 {
		at := time.UnixMilli(int64(c.Created * 1000)).UTC()
		out.CreatedAt = &at
	}
	return out, nil
}

var errTooLong = errors.New("a line is too long")

// readLine returns a line of at most limit bytes, without its end.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, errTooLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
