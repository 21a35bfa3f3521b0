// Package lambda invokes handlers that are written for AWS Lambda: a function of
// an event and a context in Python, Node.js or Go, in a file of its own.
//
// In: the file, an event and what the context tells. Out: a program for a
// sandbox, the file with its result, and what that result means. The program is
// a bootstrap (folder bootstrap) that loads the handler, calls it once, and
// writes the result; what the handler prints is its log. The package runs
// nothing itself.
//
//	New      checks an invocation and makes its program
//	Result   reads the result of the program
package lambda

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Bounds of an invocation.
const (
	// MaxEvent bounds the event, in bytes; AWS Lambda has the same bound.
	MaxEvent = 6 << 20
	// MaxResult bounds the file with the result, in bytes.
	MaxResult = 8 << 20
	// DefaultTimeout and MaxTimeout are of the invocation, without its set-up.
	DefaultTimeout = 300 * time.Second
	MaxTimeout     = time.Hour
)

// dir is the folder of the bootstrap, below the working directory of the sandbox.
const dir = ".sandbox-run"

// ResultPath is the file with the result, below the working directory. An
// execution has it in the file that EXECUTION_RESULT names.
const ResultPath = dir + "/result.json"

//go:embed bootstrap
var bootstrap embed.FS

// Invocation is one call of a handler.
type Invocation struct {
	File    string          // base name of the handler's file
	Code    []byte          // its content
	Handler string          // name of the function; "": the language's usual ones
	Event   json.RawMessage // nil: {}
	Context json.RawMessage // fields that replace those of the context; nil: none
	Timeout time.Duration   // 0: DefaultTimeout
	Memory  int64           // limit that the context tells, in bytes; 0: 512 MiB
	Layers  []string        // directories of layers, below the working directory
	// Key makes the program the same for the same invocation with the key: its
	// request id is made of it. It also has a folder of its own, so that others may
	// run in the sandbox at the same time. "": random, and without such a folder.
	Key string
}

// Program is an invocation as a program of a sandbox.
type Program struct {
	Language string            // of domain/languages
	Template string            // "": the language's
	File     string            // name of the program's file
	Code     []byte            // the program
	Args     []string          // its arguments
	Files    map[string][]byte // more files, by path below the working directory
	Env      map[string]string
	// RequestID is the id of the invocation, as the context tells it.
	RequestID string
}

// language is how handlers of one language are called.
type language struct {
	name      string   // of domain/languages
	template  string   // "": the language's
	bootstrap string   // file of the program
	extra     []string // further files of the bootstrap
	functions []string // usual names of the function, in order
	runtime   string   // AWS_EXECUTION_ENV
}

var languages = map[string]language{
	".py":  {name: "python", bootstrap: "bootstrap.py", functions: []string{"handler", "lambda_handler"}, runtime: "AWS_Lambda_python"},
	".js":  {name: "javascript", bootstrap: "bootstrap.cjs", functions: []string{"handler"}, runtime: "AWS_Lambda_nodejs"},
	".mjs": {name: "javascript", bootstrap: "bootstrap.cjs", functions: []string{"handler"}, runtime: "AWS_Lambda_nodejs"},
	".cjs": {name: "javascript", bootstrap: "bootstrap.cjs", functions: []string{"handler"}, runtime: "AWS_Lambda_nodejs"},
	".go": {
		name: "shell", template: "go", bootstrap: "build.sh", extra: []string{"bootstrap.go.txt", "runtime.go.txt"},
		functions: []string{"Handler", "HandleRequest", "handler", "handleRequest"}, runtime: "AWS_Lambda_go",
	},
}

// New returns the program of an invocation. InvalidArgument for a file of another
// language, an event that is not JSON, and a context that is not an object. A
// [HandlerError] if the file of a Go handler has a syntax error or no handler.
func New(in Invocation) (*Program, error) {
	lang, ok := languages[path.Ext(in.File)]
	if !ok {
		return nil, errs.New(errs.InvalidArgument, "%s is not a handler in Python, Node.js or Go", in.File).
			WithHint("its name must end in .py, .js, .mjs, .cjs or .go")
	}
	if in.File != path.Base(in.File) || strings.HasPrefix(in.File, ".") {
		return nil, errs.New(errs.InvalidArgument, "%q is not the name of a handler's file", in.File)
	}
	if in.Event == nil {
		in.Event = json.RawMessage("{}")
	}
	if len(in.Event) > MaxEvent {
		return nil, errs.New(errs.InvalidArgument, "the event has %d bytes, at most %d are possible", len(in.Event), MaxEvent)
	}
	if err := json.Unmarshal(in.Event, new(any)); err != nil {
		return nil, errs.New(errs.InvalidArgument, "the event is not JSON: %w", err)
	}
	if in.Timeout < 0 || in.Timeout > MaxTimeout {
		return nil, errs.New(errs.InvalidArgument, "a timeout of %s is not between 1 ms and %s", in.Timeout, MaxTimeout)
	}
	in.Timeout = cmp.Or(in.Timeout, DefaultTimeout)
	in.Memory = cmp.Or(in.Memory, 512<<20)
	functions := lang.functions
	if in.Handler != "" {
		functions = []string{functionOf(in.Handler)}
	}
	requestID, dir := newRequestID(in.Key), dir
	if in.Key != "" {
		dir += "/" + requestID
	}
	p := &Program{
		Language: lang.name, Template: lang.template, File: "_sandbox_run" + path.Ext(lang.bootstrap), Args: []string{dir},
		Files: map[string][]byte{in.File: in.Code}, RequestID: requestID,
	}
	if path.Ext(in.File) == ".go" {
		f, err := goHandler(in.File, in.Code, functions)
		if err != nil {
			return nil, err
		}
		p.Args = append(p.Args, "main")
		if f != mainFunction {
			p.Args[1] = "function"
			p.Files["zz_sandbox_handler.go"] = fmt.Appendf(nil, "package main\n\nvar sandboxHandler = %s\n", f)
		}
	}
	about, err := in.context(p.RequestID)
	if err != nil {
		return nil, err
	}
	name, logGroup, logStream := about["function_name"], about["log_group_name"], about["log_stream_name"]
	if path.Ext(in.File) != ".py" {
		about = camel(about)
	}
	request, err := json.Marshal(map[string]any{
		"file": in.File, "functions": functions, "event": in.Event, "context": about, "timeout_ms": in.Timeout.Milliseconds(), "layers": in.Layers,
	})
	if err != nil {
		return nil, errs.New(errs.Internal, "encode the request: %w", err)
	}
	p.Files[dir+"/request.json"] = request
	for _, f := range lang.extra {
		if p.Files[dir+"/"+f], err = bootstrap.ReadFile("bootstrap/" + f); err != nil {
			return nil, errs.New(errs.Internal, "%w", err)
		}
	}
	if p.Code, err = bootstrap.ReadFile("bootstrap/" + lang.bootstrap); err != nil {
		return nil, errs.New(errs.Internal, "%w", err)
	}
	p.Env = map[string]string{
		"AWS_LAMBDA_FUNCTION_NAME": fmt.Sprint(name), "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": fmt.Sprint(in.Memory >> 20), "AWS_EXECUTION_ENV": lang.runtime,
		"AWS_LAMBDA_LOG_GROUP_NAME": fmt.Sprint(logGroup), "AWS_LAMBDA_LOG_STREAM_NAME": fmt.Sprint(logStream),
		"_HANDLER": strings.TrimSuffix(in.File, path.Ext(in.File)) + "." + functions[0], "TZ": ":UTC",
	}
	return p, nil
}

// functionOf returns the function that a handler's name means: AWS names it with
// its module, "app.handler".
func functionOf(handler string) string { return handler[strings.LastIndexByte(handler, '.')+1:] }

// context returns the fields of the context as Python names them.
func (in *Invocation) context(requestID string) (map[string]any, error) {
	name := strings.TrimSuffix(in.File, path.Ext(in.File))
	day := time.Now().UTC().Format("2006/01/02/")
	if in.Key != "" {
		day = ""
	}
	c := map[string]any{
		"function_name": name, "function_version": "$LATEST", "memory_limit_in_mb": fmt.Sprint(in.Memory >> 20),
		"invoked_function_arn": "arn:aws:lambda:us-east-1:000000000000:function:" + name, "aws_request_id": requestID,
		"log_group_name": "/aws/lambda/" + name, "log_stream_name": day + "[$LATEST]" + requestID,
	}
	if in.Context == nil {
		return c, nil
	}
	var more map[string]any
	if err := json.Unmarshal(in.Context, &more); err != nil || more == nil {
		return nil, errs.New(errs.InvalidArgument, "the context is not a JSON object")
	}
	for k, v := range more {
		c[snake(k)] = v
	}
	return c, nil
}

// camel names the fields of the context as Node.js does.
func camel(c map[string]any) map[string]any {
	out := make(map[string]any, len(c))
	for k, v := range c {
		parts := strings.Split(k, "_")
		for i, p := range parts[1:] {
			if p == "mb" {
				p = "MB"
			}
			parts[i+1] = strings.ToUpper(p[:min(1, len(p))]) + p[min(1, len(p)):]
		}
		out[strings.Join(parts, "")] = v
	}
	return out
}

// snake names a field of the context as Python does.
func snake(k string) string {
	k = strings.ReplaceAll(k, "MB", "Mb")
	var out []byte
	for i := range len(k) {
		if c := k[i]; c >= 'A' && c <= 'Z' {
			out = append(out, '_', c+'a'-'A')
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

// mainFunction is the function of a program, which calls lambda.Start.
const mainFunction = "main"

// goHandler returns the first of the functions that a Go file has, mainFunction if
// the file is a program.
func goHandler(file string, code []byte, functions []string) (string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, code, parser.SkipObjectResolution)
	if err != nil {
		return "", &HandlerError{Outcome: OutcomeSyntax, Err: &Error{Type: "Runtime.UserCodeSyntaxError", Message: err.Error()}}
	}
	has := map[string]bool{}
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			has[f.Name.Name] = true
		}
	}
	undefined := func(format string, args ...any) error {
		return &HandlerError{Outcome: OutcomeUndefined, Err: &Error{Type: "Runtime.HandlerNotFound", Message: fmt.Sprintf(format, args...)}}
	}
	if parsed.Name.Name != "main" {
		return "", undefined("%s must be of package main", file)
	}
	if has[mainFunction] {
		return mainFunction, nil
	}
	if i := slices.IndexFunc(functions, func(f string) bool { return has[f] }); i >= 0 {
		return functions[i], nil
	}
	return "", undefined("%s has no function %s; it has %s", file, strings.Join(functions, " or "),
		cmp.Or(strings.Join(slices.Sorted(maps.Keys(has)), ", "), "none"))
}

// newRequestID returns the UUID that a key has, or a random one.
func newRequestID(key string) string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	if key != "" {
		h := sha256.Sum256([]byte(key))
		copy(b[:], h[:])
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Outcome is how an invocation ended.
type Outcome string

// Outcomes.
const (
	OutcomeSuccess   Outcome = "success"
	OutcomeError     Outcome = "error"     // the handler failed, or its result is not JSON
	OutcomeSyntax    Outcome = "syntax"    // its file has a syntax error, or does not compile
	OutcomeUndefined Outcome = "undefined" // its file has no such function
	OutcomeTimeout   Outcome = "timeout"
)

// Error is an error of a handler as AWS Lambda returns it.
type Error struct {
	Message string   `json:"errorMessage"`
	Type    string   `json:"errorType"`
	Trace   []string `json:"stackTrace"`
}

// Result is the result of an invocation.
type Result struct {
	Outcome     Outcome         `json:"outcome"`
	Value       json.RawMessage `json:"value,omitempty"` // of a success
	Error       *Error          `json:"error,omitempty"` // of the other outcomes
	InstallMS   float64         `json:"install_ms,omitempty"`
	InitMS      float64         `json:"init_ms"`
	DurationMS  float64         `json:"duration_ms"`
	MaxMemoryKB int64           `json:"max_memory_kb"`
}

// HandlerError is a handler that cannot be called.
type HandlerError struct {
	Outcome Outcome
	Err     *Error
}

func (e *HandlerError) Error() string { return e.Err.Type + ": " + e.Err.Message }

// exitTimeout is the exit code of a program whose time was over.
const exitTimeout = 124

// ReadResult returns the result of a program that ended with an exit code and
// wrote the file b, which is empty if the handler ended the process itself.
func ReadResult(b []byte, exitCode int, timeout time.Duration) *Result {
	if len(bytes.TrimSpace(b)) == 0 {
		if exitCode == exitTimeout {
			return &Result{Outcome: OutcomeTimeout, Error: &Error{
				Type: "Sandbox.Timedout", Message: fmt.Sprintf("Task timed out after %.2f seconds", cmp.Or(timeout, DefaultTimeout).Seconds()),
			}}
		}
		return &Result{Outcome: OutcomeError, Error: &Error{
			Type: "Runtime.ExitError", Message: fmt.Sprintf("the process ended with exit code %d before the handler returned", exitCode),
		}}
	}
	r := new(Result)
	err := json.Unmarshal(b, r)
	switch {
	case err != nil || !slices.Contains([]Outcome{OutcomeSuccess, OutcomeError, OutcomeSyntax, OutcomeUndefined}, r.Outcome):
		return &Result{Outcome: OutcomeError, Error: &Error{Type: "Runtime.InvalidResult", Message: "the handler changed the file of its result"}}
	case r.Outcome == OutcomeSuccess && len(r.Value) == 0:
		r.Value = json.RawMessage("null")
	case r.Outcome != OutcomeSuccess && r.Error == nil:
		r.Error = &Error{Type: "Runtime.Unknown"}
	}
	return r
}
