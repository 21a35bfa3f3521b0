package rest

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

// maxScanned bounds the executions that are searched for the last one of a session.
const maxScanned = 1000

// Execute describes what is executed: code, or a command.
type Execute struct {
	Language       string            `json:"language,omitempty" maxLength:"32" doc:"Language of code: python, javascript, typescript, go, rust, java, cpp, csharp, shell." example:"python"`
	Code           string            `json:"code,omitempty" maxLength:"8388608" doc:"The program; absent: command says what runs." example:"print(6*7)"`
	File           string            `json:"file,omitempty" maxLength:"255" doc:"Name of the program's file; absent: the language's."`
	Args           []string          `json:"args,omitempty" maxItems:"4096" doc:"Arguments of the program."`
	Command        []string          `json:"command,omitempty" maxItems:"4096" doc:"Command line; absent with code."`
	Handler        *Handler          `json:"handler,omitempty" doc:"A handler for AWS Lambda to invoke once, in place of code and command."`
	Files          []InputFile       `json:"files,omitempty" maxItems:"1000" doc:"More files; at most 8 MiB together with code and stdin."`
	Stdin          string            `json:"stdin,omitempty" maxLength:"8388608" doc:"Standard input."`
	Env            map[string]string `json:"env,omitempty" doc:"Environment variables of the program."`
	Workdir        string            `json:"workdir,omitempty" maxLength:"4095" doc:"Working directory."`
	User           string            `json:"user,omitempty" maxLength:"256" doc:"User."`
	Confine        bool              `json:"confine,omitempty" doc:"Run code in a second layer inside the sandbox."`
	TimeoutSeconds *int64            `json:"timeout_seconds,omitempty" minimum:"1" maximum:"3600" doc:"The program is ended after this time; absent: 5 minutes."`
	Priority       *int64            `json:"priority,omitempty" minimum:"-100" maximum:"100" doc:"Higher ones come first."`
}

// Bytes is binary data, in base64. Without a schema of its own, huma refuses an empty one.
type Bytes []byte

// Schema implements huma.SchemaProvider.
func (Bytes) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "byte"}
}

// InputFile is a file for an execution.
type InputFile struct {
	Path       string `json:"path" minLength:"1" maxLength:"4095" doc:"Path; a relative one is below the working directory."`
	Data       Bytes  `json:"data" doc:"Content, in base64."`
	Executable bool   `json:"executable,omitempty" doc:"May be executed."`
}

func (x *Execute) request(project, key string) (*execution.SubmitRequest, error) {
	n := 0
	for _, has := range []bool{x.Code != "", len(x.Command) > 0, x.Handler != nil} {
		if has {
			n++
		}
	}
	if n != 1 {
		return nil, errs.New(errs.InvalidArgument, "an execution has either code or command or a handler")
	}
	if x.Handler != nil && x.Language+x.File != "" || x.Handler != nil && len(x.Args) > 0 {
		return nil, errs.New(errs.InvalidArgument, "language, file and args belong to code, not to a handler")
	}
	req := &execution.SubmitRequest{
		Project: project, Key: key, Language: x.Language, File: x.File, Args: x.Args, Command: x.Command, Env: x.Env, Workdir: x.Workdir, User: x.User,
		Confine: opt.Of(x.Confine), Timeout: seconds(x.TimeoutSeconds), Priority: x.Priority,
	}
	if x.Code != "" {
		req.Code = []byte(x.Code)
	}
	if x.Stdin != "" {
		req.Stdin = []byte(x.Stdin)
	}
	for _, f := range x.Files {
		req.Files = append(req.Files, execution.InputFile{Path: f.Path, Data: f.Data, Executable: opt.Of(f.Executable)})
	}
	if x.Handler != nil {
		if err := x.Handler.program(req, x.TimeoutSeconds, key); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// merged returns the labels of the face and those of the request.
func merged(own, more map[string]string) map[string]string {
	out := maps.Clone(more)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, own)
	return out
}

// Execution is submitted code, and how it ended.
type Execution struct {
	ID        string            `json:"id" doc:"Id." example:"exec-4k2j7q"`
	Session   string            `json:"session,omitempty" doc:"The persistent session in which it runs; absent: it has a sandbox of its own."`
	Language  string            `json:"language,omitempty" doc:"Language of the program."`
	State     string            `json:"state" enum:"waiting,queued,running,ended" doc:"State."`
	Outcome   string            `json:"outcome,omitempty" enum:"succeeded,failed,timeout,oom,sandbox,setup,interrupted,cancelled" doc:"How it ended."`
	ExitCode  *int64            `json:"exit_code,omitempty" doc:"Exit code; 128+n for signal n, 124 after a timeout."`
	Message   string            `json:"message,omitempty" doc:"Reason of the outcome."`
	Attempt   int64             `json:"attempt" doc:"Number of the attempt that is under way, or was last."`
	Labels    map[string]string `json:"labels,omitempty" doc:"Labels."`
	Batch     string            `json:"batch,omitempty" doc:"Id of its batch."`
	Metrics   *Metrics          `json:"metrics,omitempty" doc:"What the last attempt took."`
	CreatedAt time.Time         `json:"created_at" doc:"Time of the submission."`
	StartedAt *time.Time        `json:"started_at,omitempty" doc:"Start of the program."`
	EndedAt   *time.Time        `json:"ended_at,omitempty" doc:"Time of its end."`
}

// Metrics is what an attempt took.
type Metrics struct {
	QueueMillis int64  `json:"queue_ms" doc:"Milliseconds in the queue."`
	SetupMillis int64  `json:"setup_ms" doc:"Milliseconds for the sandbox and the files."`
	WallMillis  int64  `json:"wall_ms" doc:"Milliseconds from the start of the program to its end."`
	CPUMillis   *int64 `json:"cpu_ms,omitempty" doc:"Milliseconds of CPU time of the sandbox meanwhile."`
	MemoryBytes *int64 `json:"memory_bytes,omitempty" doc:"Most memory that the sandbox was seen to use meanwhile."`
}

// ExecutionResult is what an attempt left.
type ExecutionResult struct {
	Execution       Execution      `json:"execution" doc:"The execution."`
	Encoding        string         `json:"encoding" enum:"text,base64" doc:"Of stdout, stderr and result."`
	Stdout          string         `json:"stdout" doc:"Standard output, its first MiB."`
	Stderr          string         `json:"stderr" doc:"Error output, its first MiB."`
	Handler         *HandlerResult `json:"handler,omitempty" doc:"Of an invocation of a handler: how it ended."`
	Result          *string        `json:"result,omitempty" doc:"What the program wrote to the file that EXECUTION_RESULT names."`
	StdoutTruncated bool           `json:"stdout_truncated,omitempty" doc:"There was more standard output."`
	StderrTruncated bool           `json:"stderr_truncated,omitempty" doc:"There was more error output."`
	ResultTruncated bool           `json:"result_truncated,omitempty" doc:"There was more than a MiB of the result."`
}

type executeInput struct {
	SessionInput
	Key         string `header:"Idempotency-Key" maxLength:"200" doc:"Names the submission: another one with the key and the same body gets the execution of the first."`
	WaitSeconds int64  `query:"wait" minimum:"0" maximum:"300" default:"0" doc:"Longest time until the execution has ended, in seconds. Then it is returned as it is."`
	Accept      string `header:"Accept" maxLength:"1000" doc:"text/event-stream: the answer is the stream of the execution."`
	ResultQuery
	Body Execute
}

// Submission describes an execution with a sandbox of its own.
type Submission struct {
	Execute
	Template  string            `json:"template,omitempty" maxLength:"200" doc:"Template of its sandbox; absent: the language's."`
	Image     string            `json:"image,omitempty" maxLength:"512" doc:"Image of its sandbox, with command."`
	Labels    map[string]string `json:"labels,omitempty" doc:"Labels."`
	EnvSecret map[string]string `json:"env_secret,omitempty" doc:"Environment variables whose values are encrypted and never shown."`
}

type submitInput struct {
	Key         string `header:"Idempotency-Key" maxLength:"200" doc:"Names the submission: another one with the key and the same body gets the execution of the first."`
	WaitSeconds int64  `query:"wait" minimum:"0" maximum:"300" default:"0" doc:"Longest time until the execution has ended, in seconds. Then it is returned as it is."`
	Body        Submission
}

// ExecutionInput names an execution.
type ExecutionInput struct {
	ID string `path:"id" maxLength:"63" pattern:"^exec-[a-z0-9]+$" doc:"Id of the execution." example:"exec-4k2j7q"`
}

func registerExecutions(a huma.API) {
	const tag = "executions"
	register(a, op(http.MethodPost, "/sessions/{id}/execute", "execute-in-session", tag, "Execute code or a command in a persistent session",
		answers(map[string]*huma.MediaType{
			"application/json": {Schema: a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Execution](), true, "Execution")},
			eventStream:        events(a, executionEvents),
		})), executeInSession)
	register(a, op(http.MethodGet, "/sessions/{id}/status", "get-session-status", tag, "Get the state of a session and of its last execution"), sessionStatus)
	register(a, op(http.MethodGet, "/sessions/{id}/result", "get-session-result", tag, "Get what the last execution of a session left"), sessionResult)
	register(a, op(http.MethodPost, "/executions", "submit-execution", tag, "Execute code or a command in a sandbox of its own", status(http.StatusCreated)), submitExecution)
	register(a, op(http.MethodGet, "/executions", "list-executions", tag, "List the executions of the project, newest first"), listExecutions)
	register(a, op(http.MethodGet, "/executions/{id}", "get-execution", tag, "Get an execution"), getExecution)
	register(a, op(http.MethodPost, "/executions/{id}/cancel", "cancel-execution", tag, "Cancel an execution"), cancelExecution)
	register(a, op(http.MethodGet, "/executions/{id}/result", "get-execution-result", tag, "Get what an execution left"), executionResult)
}

func executions(ctx context.Context) execution.ExecutionsClient {
	return execution.NewExecutionsClient(callerFrom(ctx).Client)
}

func decodeExecution(resp *execution.ExecutionResponse, err error) (*execution.Execution, error) {
	if err != nil {
		return nil, err
	}
	return entity.Decode[execution.Execution](&resp.Execution)
}

func executionAnswer(e *execution.Execution, err error) (*body[Execution], error) {
	if err != nil {
		return nil, err
	}
	return &body[Execution]{executionOf(e)}, nil
}

func findExecution(ctx context.Context, eid string) (*execution.Execution, error) {
	return decodeExecution(executions(ctx).Get(ctx, &execution.ExecutionRequest{Project: callerFrom(ctx).Project(), Execution: eid}))
}

// submit submits an execution, waits for its end for some time, and returns it
// as it is then.
func submit(ctx context.Context, req *execution.SubmitRequest, wait int64) (*execution.Execution, error) {
	e, err := decodeExecution(executions(ctx).Submit(ctx, req))
	if err != nil || wait == 0 {
		return e, err
	}
	wctx, cancel := context.WithTimeout(ctx, time.Duration(wait)*time.Second)
	defer cancel()
	ended, err := decodeExecution(executions(ctx).Wait(wctx, &execution.ExecutionRequest{Project: req.Project, Execution: string(e.ID)}))
	if errs.Is(err, errs.DeadlineExceeded) && ctx.Err() == nil {
		return findExecution(ctx, string(e.ID))
	}
	return ended, err
}

func executeInSession(ctx context.Context, in *executeInput) (*huma.StreamResponse, error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	req, err := in.Body.request(callerFrom(ctx).Project(), in.Key)
	if err != nil {
		return nil, err
	}
	req.Sandbox, req.Template = sid, "" // the session has its own
	if wantsEvents(in.Accept) {
		in.WaitSeconds = 0
	}
	e, err := submit(ctx, req, in.WaitSeconds)
	if err != nil {
		return nil, err
	}
	if wantsEvents(in.Accept) {
		return &huma.StreamResponse{Body: streamed(executionSource(e, &ResumeInput{ResultQuery: in.ResultQuery}))}, nil
	}
	return jsonAnswer(executionOf(e)), nil
}

func submitExecution(ctx context.Context, in *submitInput) (*body[Execution], error) {
	req, err := in.Body.request(callerFrom(ctx).Project(), in.Key)
	if err != nil {
		return nil, err
	}
	req.Template, req.Image, req.Labels, req.EnvSecret = cmp.Or(in.Body.Template, req.Template), in.Body.Image, merged(req.Labels, in.Body.Labels), in.Body.EnvSecret
	return executionAnswer(submit(ctx, req, in.WaitSeconds))
}

func getExecution(ctx context.Context, in *ExecutionInput) (*body[Execution], error) {
	return executionAnswer(findExecution(ctx, in.ID))
}

func cancelExecution(ctx context.Context, in *ExecutionInput) (*body[Execution], error) {
	return executionAnswer(decodeExecution(executions(ctx).Cancel(ctx, &execution.CancelRequest{
		Project: callerFrom(ctx).Project(), Execution: in.ID, Wait: opt.Of(true),
	})))
}

// jsonAnswer answers with JSON where another request gets a stream.
func jsonAnswer(v any) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(c huma.Context) {
		c.SetHeader("Content-Type", "application/json")
		c.SetStatus(http.StatusOK)
		_ = json.NewEncoder(c.BodyWriter()).Encode(v) // the client may have gone
	}}
}

type listExecutionsInput struct {
	State  string `query:"state" enum:"waiting,queued,running,ended" doc:"Only executions in this state."`
	Batch  string `query:"batch" maxLength:"63" doc:"Only executions of this batch."`
	Limit  int64  `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Most executions of a page."`
	Cursor string `query:"cursor" maxLength:"256" doc:"next_cursor of the page before."`
}

// ExecutionPage is a page of a list.
type ExecutionPage struct {
	Executions []Execution `json:"executions" doc:"Executions, newest first."`
	NextCursor string      `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func listExecutions(ctx context.Context, in *listExecutionsInput) (*body[ExecutionPage], error) {
	resp, err := executions(ctx).List(ctx, &execution.ListRequest{
		Project: callerFrom(ctx).Project(), Batch: in.Batch, Phase: execution.Phase(in.State), Limit: in.Limit, Cursor: in.Cursor,
	})
	if err != nil {
		return nil, err
	}
	out := ExecutionPage{Executions: []Execution{}, NextCursor: resp.Cursor}
	for i := range resp.Executions {
		e, err := entity.Decode[execution.Execution](&resp.Executions[i])
		if err != nil {
			return nil, err
		}
		out.Executions = append(out.Executions, executionOf(e))
	}
	return &body[ExecutionPage]{out}, nil
}

type resultInput struct {
	ExecutionInput
	ResultQuery
}

// ResultQuery says how output is encoded.
type ResultQuery struct {
	Encoding string `query:"encoding" enum:"text,base64" default:"text" doc:"text: bytes that are not UTF-8 are replaced."`
}

func executionResult(ctx context.Context, in *resultInput) (*body[ExecutionResult], error) {
	return resultOf(ctx, in.ID, in.Encoding)
}

func resultOf(ctx context.Context, eid, encoding string) (*body[ExecutionResult], error) {
	resp, err := executions(ctx).Result(ctx, &execution.ResultRequest{Project: callerFrom(ctx).Project(), Execution: eid})
	if err != nil {
		return nil, err
	}
	e, err := entity.Decode[execution.Execution](&resp.Execution)
	if err != nil {
		return nil, err
	}
	text := func(b []byte) string {
		if encoding == "base64" {
			return base64.StdEncoding.EncodeToString(b)
		}
		return strings.ToValidUTF8(string(b), "\uFFFD")
	}
	r := ExecutionResult{
		Execution: executionOf(e), Encoding: encoding, Stdout: text(resp.Stdout), Stderr: text(resp.Stderr),
		StdoutTruncated: opt.Value(resp.StdoutTruncated), StderrTruncated: opt.Value(resp.StderrTruncated), ResultTruncated: opt.Value(resp.ResultTruncated),
	}
	if resp.Result != nil {
		r.Result = opt.Of(text(resp.Result))
	}
	r.Handler = handlerResult(e, resp.Result)
	return &body[ExecutionResult]{r}, nil
}

// SessionStatus is the state of a session and of its last execution.
type SessionStatus struct {
	Session   Session    `json:"session" doc:"The session."`
	Execution *Execution `json:"execution,omitempty" doc:"Its last execution; absent: it has none among the last 1000 of the project."`
}

// lastExecution returns the last execution of a session; nil if it has none.
func lastExecution(ctx context.Context, in *SessionInput) (*execution.Execution, error) {
	if in.ephemeral() {
		return findExecution(ctx, in.ID)
	}
	resp, err := executions(ctx).List(ctx, &execution.ListRequest{Project: callerFrom(ctx).Project(), Limit: maxScanned})
	if err != nil {
		return nil, err
	}
	for i := range resp.Executions {
		e, err := entity.Decode[execution.Execution](&resp.Executions[i])
		if err != nil {
			return nil, err
		}
		if e.Spec.Sandbox == in.ID {
			return e, nil
		}
	}
	return nil, nil
}

func sessionStatus(ctx context.Context, in *SessionInput) (*body[SessionStatus], error) {
	s, err := getSession(ctx, in)
	if err != nil {
		return nil, err
	}
	out := SessionStatus{Session: s.Body}
	e, err := lastExecution(ctx, in)
	if err != nil {
		return nil, err
	}
	if e != nil {
		out.Execution = optionalOf(executionOf(e))
	}
	return &body[SessionStatus]{out}, nil
}

func optionalOf[T any](v T) *T { return &v }

type sessionResultInput struct {
	SessionInput
	ResultQuery
}

func sessionResult(ctx context.Context, in *sessionResultInput) (*body[ExecutionResult], error) {
	e, err := lastExecution(ctx, &in.SessionInput)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, errs.New(errs.NotFound, "session %s has no execution among the last %d of the project", in.ID, maxScanned).
			WithHint("GET /api/v1/executions/{id}/result has that of any execution")
	}
	return resultOf(ctx, string(e.ID), in.Encoding)
}
