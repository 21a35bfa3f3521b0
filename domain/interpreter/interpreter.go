// Package interpreter executes code in sandboxes.
//
// Python, JavaScript, TypeScript and shell code runs in a context, a process in
// the sandbox that keeps variables, functions and the working directory between
// executions. A server in the sandbox, part of the image of the template
// code-interpreter-v1, has the contexts: see [Port]. Other languages are compiled
// and run each time, in a sandbox whose template has them.
//
// The sandbox is hostile: everything that its server says is bounded and checked.
package interpreter

import (
	"context"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// maxCode bounds the code of an execution, in bytes.
const maxCode = 8 << 20

// kept are the languages that keep state.
var kept = []string{"python", "javascript", "typescript", "shell"}

// Service executes code. It is safe for concurrent use.
type Service struct {
	// Running returns a sandbox when it runs, and an error if it has ended:
	// sandboxes.Service.Running.
	Running func(context.Context, id.Sandbox) (*sandbox.Sandbox, error)
	Node    Node
	Sealer  *schema.Sealer // of the sandboxes' secrets
}

// Node is the interface to the machine that runs the sandboxes: part of
// sandboxes.Node.
type Node interface {
	Dial(ctx context.Context, sid id.Sandbox, port int) (sandboxes.Conn, error)
	Exec(ctx context.Context, sid id.Sandbox, spec sandboxes.ExecSpec) (sandboxes.Process, error)
}

// RunRequest is code to execute.
type RunRequest struct {
	Sandbox  id.Sandbox
	Code     string
	Language string            // name or alias; "": that of the context, or python
	Context  string            // id; "": the language's own, which the first execution makes
	Env      map[string]string // during this execution
	Timeout  time.Duration     // 0: none
}

// Run executes code and passes on what it does, the end last. The call waits
// while the context executes other code. If ctx ends before, the code is
// interrupted. An error of the code is an event. Errors: InvalidArgument for an
// unknown language and for one without contexts in a context; NotFound for an
// unknown context; FailedPrecondition if the sandbox has ended or has no
// interpreter; ResourceExhausted if the code prints too much; those of emit.
func (s *Service) Run(ctx context.Context, req RunRequest, emit func(*interpreter.RunEvent) error) error {
	lang, err := languageOf(req.Language, req.Context)
	if err != nil {
		return err
	}
	if len(req.Code) > maxCode {
		return errs.New(errs.InvalidArgument, "the code has more than %d MiB", maxCode>>20).WithHint("put data into a file of the sandbox")
	}
	if err := sandboxes.CheckProcess(nil, req.Env); err != nil {
		return err
	}
	sb, err := s.Running(ctx, req.Sandbox)
	if err != nil {
		return err
	}
	if lang != nil && !slices.Contains(kept, lang.Name) {
		return s.runOnce(ctx, sb, lang, req, emit)
	}
	w := request{Op: "run", Code: &req.Code, Context: req.Context, EnvVars: req.Env, Timeout: req.Timeout.Seconds()}
	if lang != nil {
		w.Language = lang.Name
	}
	if err := s.start(sb, &w); err != nil {
		return err
	}
	return s.run(ctx, sb, w, emit)
}

// languageOf returns the language of an execution, nil for that of its context.
func languageOf(name, in string) (*languages.Language, error) {
	if name == "" {
		return nil, nil
	}
	lang, err := languages.Lookup(name)
	if err != nil {
		return nil, err
	}
	if in != "" && !slices.Contains(kept, lang.Name) {
		return nil, errs.New(errs.InvalidArgument, "%s has no contexts", lang.Title).WithHint("contexts are of %s; code of other languages runs without one", strings.Join(kept, ", "))
	}
	return &lang, nil
}

// CreateRequest describes a context.
type CreateRequest struct {
	Sandbox  id.Sandbox
	Language string            // "": python
	Workdir  string            // "": the sandbox's
	Env      map[string]string // added to the sandbox's
}

// Create makes a context. Errors: those of Run; ResourceExhausted if the
// sandbox has as many as it may have.
func (s *Service) Create(ctx context.Context, req CreateRequest) (*interpreter.CodeContext, error) {
	lang, err := languages.Lookup(orPython(req.Language))
	if err != nil {
		return nil, err
	}
	if !slices.Contains(kept, lang.Name) {
		return nil, errs.New(errs.InvalidArgument, "%s has no contexts", lang.Title).WithHint("contexts are of %s", strings.Join(kept, ", "))
	}
	if err := sandboxes.CheckProcess(nil, req.Env); err != nil {
		return nil, err
	}
	sb, err := s.Running(ctx, req.Sandbox)
	if err != nil {
		return nil, err
	}
	w := request{Op: "create", Language: lang.Name, Workdir: req.Workdir}
	if err := s.start(sb, &w); err != nil {
		return nil, err
	}
	for k, v := range req.Env {
		w.Env[k] = v
	}
	return s.one(ctx, sb, w)
}

func orPython(language string) string {
	if language == "" {
		return "python"
	}
	return language
}

// List returns the contexts of a sandbox, the oldest first.
func (s *Service) List(ctx context.Context, sid id.Sandbox) ([]interpreter.CodeContext, error) {
	sb, err := s.Running(ctx, sid)
	if err != nil {
		return nil, err
	}
	r, err := s.ask(ctx, sb, request{Op: "list"})
	if err != nil {
		return nil, err
	}
	return r.contexts(sb)
}

// Interrupt interrupts what a context executes. NotFound if there is none of
// that id.
func (s *Service) Interrupt(ctx context.Context, sid id.Sandbox, name string) (*interpreter.CodeContext, error) {
	return s.on(ctx, sid, "interrupt", name)
}

// Restart replaces the process of a context, ending what it executes.
func (s *Service) Restart(ctx context.Context, sid id.Sandbox, name string) (*interpreter.CodeContext, error) {
	return s.on(ctx, sid, "restart", name)
}

// Delete deletes a context, ending what it executes.
func (s *Service) Delete(ctx context.Context, sid id.Sandbox, name string) error {
	_, err := s.on(ctx, sid, "remove", name)
	return err
}

// on has a context do something.
func (s *Service) on(ctx context.Context, sid id.Sandbox, op, name string) (*interpreter.CodeContext, error) {
	sb, err := s.Running(ctx, sid)
	if err != nil {
		return nil, err
	}
	w := request{Op: op, Context: name}
	if err := s.start(sb, &w); err != nil {
		return nil, err
	}
	return s.one(ctx, sb, w)
}

// start sets what a context starts with: the sandbox's variables, which a warm
// sandbox got after its server had started, and its working directory.
func (s *Service) start(sb *sandbox.Sandbox, w *request) error {
	env, err := sandboxes.Environment(&sb.Spec.Template, s.Sealer)
	if err != nil {
		return err
	}
	w.Env = map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		w.Env[name] = value
	}
	if w.Workdir == "" {
		w.Workdir = sb.Spec.Template.Workdir
	}
	return nil
}
