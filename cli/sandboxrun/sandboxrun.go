// Package sandboxrun has `sandbox-run`: one invocation of a handler that is
// written for AWS Lambda, in a new sandbox.
package sandboxrun

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/local"
	"miren.dev/runtime/cli/runcode"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/lambda"
	"miren.dev/runtime/pkg/rpc"
)

// Name is the name of the command, and of a program that is this command alone.
const Name = "sandbox-run"

// Exit codes, beside 0.
const (
	exitFailed     = 1 // the handler failed
	exitNoFile     = 2 // also wrong usage
	exitNoHandler  = 3 // a syntax error, or no such function
	exitTimeout    = 4
	exitNotStarted = 5
)

// beside are the files next to a handler that are sent with it, if they exist:
// they state what it needs.
var beside = map[string][]string{
	".py": {"requirements.txt"},
	".js": {"package.json", "package-lock.json"}, ".mjs": {"package.json", "package-lock.json"}, ".cjs": {"package.json", "package-lock.json"},
	".go": {"go.mod", "go.sum"},
}

type options struct {
	*command.Env
	event   string
	about   string
	handler string
	env     []string
	secrets []string
	files   []string
	layers  []string
	memory  command.Bytes
	network string
	timeout time.Duration
	profile bool
	local   bool
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:   Name + " HANDLER",
		Short: "Invoke a handler for AWS Lambda in a new sandbox",
		Long: `Calls the handler in a file of Python (.py), Node.js (.js, .mjs, .cjs) or Go (.go) once, with an event and a context as AWS
Lambda has them, in a new sandbox that is deleted afterwards. Standard output gets the result, standard error what the
handler prints. requirements.txt, package.json or go.mod next to the handler state the packages that it needs.

Without a server, neither named nor on this machine, root gets a local installation, which the command starts and which
ends when it was not used for ten minutes.

Exit codes: 0 success, 1 the handler failed, 2 wrong usage or no such file, 3 a syntax error or no such handler,
4 timeout, 5 the sandbox could not be started.`,
		Example: "  r sandbox-run handler.py --event '{\"name\": \"Ada\"}'\n  r sandbox-run index.mjs --event @event.json --timeout 10s --json\n" +
			"  r sandbox-run main.go --handler HandleOrder --profile",
		Args: command.Args(1, 1, "HANDLER"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.event, "event", "e", "{}", "event: JSON, @FILE, or - for standard input")
	f.StringVar(&o.about, "context", "", "fields that replace those of the context: a JSON object, or @FILE")
	f.StringVar(&o.handler, "handler", "", "name of the function; default: handler or lambda_handler in Python, handler in Node.js, Handler or HandleRequest in Go")
	f.StringArrayVar(&o.env, "env", nil, "environment variable, KEY=VALUE, or KEY for its value here")
	f.StringArrayVar(&o.secrets, "secret", nil, "secret environment variable, KEY=VALUE, or KEY for its value here")
	f.StringArrayVarP(&o.files, "file", "f", nil, "more files for the directory of the handler: PATH, or PATH:DESTINATION")
	f.StringArrayVar(&o.layers, "layer", nil, "folder of a layer, with python/ or nodejs/node_modules/")
	f.Var(&o.memory, "memory", "memory limit: 512MB, 2GiB")
	f.StringVar(&o.network, "network", "", "network: bridge or none")
	f.DurationVar(&o.timeout, "timeout", lambda.DefaultTimeout, "end the handler after this time, at most 1h")
	f.BoolVar(&o.local, "local", false, "use the installation of this machine that needs no server, even if there is a server")
	f.BoolVar(&o.profile, "profile", false, "print how long the start and the call took, and the memory")
	return cmd
}

// document is what --json prints.
type document struct {
	RequestID string         `json:"request_id"`
	Result    *lambda.Result `json:"result"`
	TotalMS   int64          `json:"total_ms"`
}

func (o *options) run(ctx context.Context, file string) error {
	if g := o.Options; o.local && (g.Server != "" || g.Cluster != "" || g.StateDir != "") {
		return exit.Usagef("--local and a server are given")
	}
	began := time.Now()
	p, err := o.program(file)
	if h := (*lambda.HandlerError)(nil); errors.As(err, &h) {
		return o.report(&document{Result: &lambda.Result{Outcome: h.Outcome, Error: h.Err}})
	}
	if err != nil {
		return err
	}
	req, err := o.request(p, file)
	if err != nil {
		return err
	}
	c, in, err := o.connect(ctx)
	if err != nil {
		return exit.With(exitNotStarted, err)
	}
	if in != nil {
		defer in.Close()
	}
	logs := *o.Console
	logs.Out = o.Err // the result alone goes to standard output
	var result bytes.Buffer
	code, err := attach.RunCode(ctx, &logs, sandbox.NewSandboxesClient(c), req, func(d *sandbox.OutputData) {
		if result.Len()+len(d.Data) <= lambda.MaxResult {
			result.Write(d.Data)
		}
	})
	switch {
	case exit.Code(err) == exit.Interrupted:
		return err
	case err != nil:
		if in != nil { // a server that was killed left what it ran
			err = errors.Join(err, in.Recover(ctx))
		}
		return exit.With(exitNotStarted, err)
	}
	return o.report(&document{RequestID: p.RequestID, Result: lambda.ReadResult(result.Bytes(), code, o.timeout), TotalMS: time.Since(began).Milliseconds()})
}

// connect connects to the server of the command, or to the local installation if
// the command names none and none runs on this machine.
func (o *options) connect(ctx context.Context) (*rpc.Client, *local.Installation, error) {
	if !o.local {
		c, err := o.Connect(ctx)
		if err == nil || !clientconfig.IsNotRunning(err) || o.Options.Env().StateDir != "" {
			return c, nil, err
		}
	}
	where, err := local.FromEnv()
	if err != nil {
		return nil, nil, err
	}
	where.Starting = func(dir string) { o.Notef("starting the local installation in %s\n", dir) }
	in, err := local.Open(ctx, where)
	if err != nil {
		return nil, nil, err
	}
	o.Use(in.Target())
	c, err := o.Connect(ctx)
	if err != nil {
		in.Close()
		return nil, nil, err
	}
	return c, in, nil
}

// program reads the handler and the event.
func (o *options) program(file string) (*lambda.Program, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, exit.With(exitNoFile, errs.New(errs.NotFound, "%v", err))
	}
	if !info.Mode().IsRegular() {
		return nil, exit.With(exitNoFile, errs.New(errs.InvalidArgument, "%s is not a file", file))
	}
	in := lambda.Invocation{File: filepath.Base(file), Handler: o.handler, Timeout: o.timeout}
	if in.Code, err = os.ReadFile(file); err != nil {
		return nil, exit.With(exitNoFile, errs.New(errs.FailedPrecondition, "%v", err))
	}
	if in.Event, err = o.document("--event", o.event); err != nil {
		return nil, err
	}
	if o.about != "" {
		if in.Context, err = o.document("--context", o.about); err != nil {
			return nil, err
		}
	}
	if m := o.memory.Ptr(); m != nil {
		in.Memory = *m
	}
	for i := range o.layers {
		in.Layers = append(in.Layers, layerDir(i))
	}
	p, err := lambda.New(in)
	if errs.Is(err, errs.InvalidArgument) {
		err = exit.With(exit.Usage, err)
	}
	return p, err
}

func layerDir(i int) string { return fmt.Sprintf(".sandbox-run/layers/%d", i) }

// document returns the JSON that an argument states.
func (o *options) document(flag, arg string) (json.RawMessage, error) {
	var in io.Reader
	name, isFile := strings.CutPrefix(arg, "@")
	switch {
	case arg == "-":
		in = o.In
	case isFile:
		f, err := os.Open(name)
		if err != nil {
			return nil, exit.Usagef("%s: %v", flag, err)
		}
		defer f.Close()
		in = f
	default:
		return json.RawMessage(arg), nil
	}
	b, err := io.ReadAll(io.LimitReader(in, lambda.MaxEvent+1))
	if err != nil {
		return nil, exit.Usagef("%s: %v", flag, err)
	}
	return b, nil
}

// request returns the request that runs a program.
func (o *options) request(p *lambda.Program, file string) (*sandbox.RunCodeRequest, error) {
	env, err := command.ParseEnv(o.env)
	if err != nil {
		return nil, err
	}
	secrets, err := command.ParseSecrets(o.secrets)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(p.Env)
	maps.Copy(all, env)
	req := &sandbox.RunCodeRequest{
		Sandbox: sandbox.RunRequest{
			Project: o.Project(), Template: p.Template, Env: all, EnvSecret: secrets, Network: sandbox.NetworkMode(o.network), MemoryBytes: o.memory.Ptr(),
		},
		Language: p.Language, Code: p.Code, File: p.File, Args: p.Args, Timeout: &o.timeout, Outputs: []string{lambda.ResultPath},
	}
	args := slices.Clone(o.files)
	for i, l := range o.layers {
		args = append(args, l+":"+layerDir(i))
	}
	for _, name := range beside[filepath.Ext(file)] {
		if path := filepath.Join(filepath.Dir(file), name); fileExists(path) {
			args = append(args, path)
		}
	}
	if req.Files, err = runcode.InputFiles(args); err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(p.Files)) {
		req.Files = append(req.Files, sandbox.InputFile{Path: path, Data: p.Files[path]})
	}
	if err := req.Validate(); err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	return req, nil
}

func fileExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// report prints the result, and returns the error with its exit code.
func (o *options) report(d *document) error {
	r := d.Result
	code := map[lambda.Outcome]int{
		lambda.OutcomeError: exitFailed, lambda.OutcomeSyntax: exitNoHandler, lambda.OutcomeUndefined: exitNoHandler, lambda.OutcomeTimeout: exitTimeout,
	}[r.Outcome]
	var err error
	switch {
	case o.JSON:
		err = o.PrintJSON(d)
	case r.Outcome == lambda.OutcomeSuccess:
		err = o.printValue(r.Value)
	default:
		o.Notef("%s\n", strings.Join(append([]string{r.Error.Type + ": " + r.Error.Message}, r.Error.Trace...), "\n"))
	}
	if o.profile {
		text := fmt.Sprintf("init %.1f ms, call %.1f ms, memory %d MB, total %d ms", r.InitMS, r.DurationMS, (r.MaxMemoryKB+512)/1024, d.TotalMS)
		if r.InstallMS > 0 {
			text = fmt.Sprintf("packages %.1f ms, ", r.InstallMS) + text
		}
		o.Notef("%s\n", text)
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return exit.With(code, nil)
	}
	return nil
}

// printValue prints the result: a string as it is, anything else as JSON.
func (o *options) printValue(v json.RawMessage) error {
	var s string
	if v[0] == '"' && json.Unmarshal(v, &s) == nil {
		_, err := fmt.Fprintln(o.Out, s)
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, v, "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintln(o.Out, b.String())
	return err
}
