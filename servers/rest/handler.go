package rest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/session"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/lambda"
	"miren.dev/runtime/pkg/opt"
)

// Handler is a handler for AWS Lambda to invoke once.
type Handler struct {
	File     string          `json:"file" minLength:"1" maxLength:"255" doc:"Name of its file: .py, .js, .mjs, .cjs or .go." example:"app.py"`
	Code     string          `json:"code" minLength:"1" maxLength:"8388608" doc:"Content of the file."`
	Function string          `json:"function,omitempty" maxLength:"255" doc:"Name of the function; absent: the language's usual ones."`
	Event    json.RawMessage `json:"event,omitempty" doc:"Event; absent: {}."`
	Context  json.RawMessage `json:"context,omitempty" doc:"An object whose fields replace those of the context."`
	Layers   []string        `json:"layers,omitempty" maxItems:"16" doc:"Directories of layers, below the working directory."`
}

// HandlerResult is how an invocation of a handler ended.
type HandlerResult struct {
	Outcome     string          `json:"outcome" enum:"success,error,syntax,undefined,timeout" doc:"How it ended."`
	Value       json.RawMessage `json:"value,omitempty" doc:"What it returned; of a success."`
	Error       *HandlerError   `json:"error,omitempty" doc:"What failed; of another outcome."`
	InstallMS   float64         `json:"install_ms,omitempty" doc:"Milliseconds for the packages that it states."`
	InitMS      float64         `json:"init_ms" doc:"Milliseconds to load it."`
	DurationMS  float64         `json:"duration_ms" doc:"Milliseconds of the call."`
	MaxMemoryKB int64           `json:"max_memory_kb" doc:"Most memory of its process, in KiB."`
}

// HandlerError is an error as AWS Lambda returns it.
type HandlerError struct {
	Message string   `json:"errorMessage" doc:"Message."`
	Type    string   `json:"errorType" doc:"Type."`
	Trace   []string `json:"stackTrace" doc:"Stack."`
}

// program makes the request for an invocation. With a key it is the same each time.
func (h *Handler) program(req *execution.SubmitRequest, timeout *int64, key string) error {
	in := lambda.Invocation{
		File: h.File, Code: []byte(h.Code), Handler: h.Function, Event: h.Event, Context: h.Context, Layers: h.Layers, Key: key,
	}
	if in.Key == "" {
		in.Key = rand.Text()
	}
	if timeout != nil {
		in.Timeout = time.Duration(*timeout) * time.Second
	}
	if req.MemoryBytes != nil {
		in.Memory = *req.MemoryBytes
	}
	p, err := lambda.New(in)
	if bad := (*lambda.HandlerError)(nil); errors.As(err, &bad) {
		return errs.New(errs.InvalidArgument, "%s: %s", bad.Err.Type, bad.Err.Message)
	}
	if err != nil {
		return err
	}
	req.Language, req.Template, req.File, req.Code, req.Args = p.Language, p.Template, p.File, p.Code, p.Args
	env := p.Env
	maps.Copy(env, req.Env)
	req.Env = env
	for _, path := range slices.Sorted(maps.Keys(p.Files)) {
		req.Files = append(req.Files, execution.InputFile{Path: path, Data: p.Files[path]})
	}
	req.Labels = map[string]string{session.LabelHandler: "true"}
	return nil
}

// handlerResult returns the result of an execution that invoked a handler; nil
// for another one.
func handlerResult(e *execution.Execution, result []byte) *HandlerResult {
	if e.Labels[session.LabelHandler] == "" {
		return nil
	}
	r := lambda.ReadResult(result, int(opt.Value(e.Status.ExitCode)), e.Spec.Timeout)
	out := &HandlerResult{
		Outcome: string(r.Outcome), Value: r.Value, InstallMS: r.InstallMS, InitMS: r.InitMS, DurationMS: r.DurationMS, MaxMemoryKB: r.MaxMemoryKB,
	}
	if r.Error != nil {
		out.Error = &HandlerError{r.Error.Message, r.Error.Type, append([]string{}, r.Error.Trace...)}
	}
	return out
}
