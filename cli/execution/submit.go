package execution

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/runcode"
)

// maxStdin bounds what is read from standard input; the server has a lower bound.
const maxStdin = 16 << 20

type submitOptions struct {
	*command.Env
	exec     command.ExecFlags
	egress   command.EgressFlags
	language string
	template string
	image    string
	sandbox  string
	agent    string
	files    []string
	volumes  []string
	secrets  []string
	memory   command.Bytes
	cpu      command.CPU
	network  string
	stdin    bool
	timeout  time.Duration
	priority int64
	after    time.Duration
	attempts int64
	delay    time.Duration
	retryOn  []string
	key      string
	each     string
	confine  bool
	wait     bool
}

func newSubmit(e *command.Env) *cobra.Command {
	o := &submitOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "submit [-l LANGUAGE] FILE|CODE [ARGS...] | -- COMMAND [ARGS...]",
		Short: "Submit a program or a command for the server to run",
		Long: `Submits a program, as for r run, or after -- a command. The server runs it to its end in a new sandbox, or in one that
exists, whether this command waits or not. Without --wait it prints the id. With --wait it prints the output and returns the
exit code of the program.`,
		Example: "  r execution submit --wait -l python 'print(6*7)'\n  r execution submit --priority 10 --timeout 20m train.py\n" +
			"  r execution submit --template base --attempts 5 --retry-on failed,interrupted -- make test\n  r execution submit --each names.txt greet.py",
		Args: command.Args(1, -1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.ArgsLenAtDash() == 0)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows the program are its arguments
	o.addFlags(cmd)
	f.StringVar(&o.sandbox, "sandbox", "", "id of a sandbox to run in, which stays")
	f.StringVar(&o.agent, "agent", "", "name of the agent in whose sandbox it runs, which stays")
	f.DurationVar(&o.after, "after", 0, "do not run it before this time has passed")
	f.Int64Var(&o.attempts, "attempts", execution.DefaultAttempts, "most attempts, 1 to 10")
	f.DurationVar(&o.delay, "retry-delay", execution.DefaultRetryDelay, "time before the second attempt; it doubles with each further one")
	f.StringSliceVar(&o.retryOn, "retry-on", nil, "outcomes after which another attempt is made: failed, timeout, oom, sandbox, setup, interrupted; default interrupted,setup")
	f.StringVar(&o.each, "each", "", "submit a batch: one execution per line of this file, with the line as last argument; - for standard input")
	f.BoolVar(&o.wait, "wait", false, "print the output, and return the exit code of the program")
	return cmd
}

// addFlags defines the flags of the program and of its new sandbox.
func (o *submitOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.language, "language", "l", "", "language: python, javascript, typescript, go, rust, java, cpp, csharp, shell")
	f.StringVar(&o.template, "template", "", "template of the new sandbox; default: the language's")
	f.StringVar(&o.image, "image", "", "image of the new sandbox, for a command")
	f.StringArrayVarP(&o.files, "file", "f", nil, "more files for the working directory: PATH, or PATH:DESTINATION")
	f.StringArrayVarP(&o.volumes, "volume", "v", nil, "disk to mount, DISK:PATH or DISK:PATH:ro")
	f.StringArrayVar(&o.secrets, "secret", nil, "secret environment variable, KEY=VALUE, or KEY for its value here")
	f.StringArrayVarP(&o.exec.Env, "env", "e", nil, "environment variable, KEY=VALUE, or KEY for its value here")
	f.StringVarP(&o.exec.Workdir, "workdir", "w", "", "working directory")
	f.StringVarP(&o.exec.User, "user", "u", "", "user, by name or uid[:gid]")
	f.Var(&o.memory, "memory", "memory limit of the new sandbox: 512MB, 2GiB")
	f.Var(&o.cpu, "cpu", "CPU limit of the new sandbox: 0.5, 2, 500m")
	f.BoolVar(&o.confine, "confine", false, "run the program in a second layer inside the sandbox, which writes only to its directory and /tmp")
	f.StringVar(&o.network, "network", "", "network of the new sandbox: bridge or none")
	o.egress.AddFlags(cmd)
	f.BoolVar(&o.stdin, "stdin", false, "send standard input with it")
	f.DurationVar(&o.timeout, "timeout", 0, "end the program after this time, 1s to 1h; default 5m")
	f.Int64Var(&o.priority, "priority", 0, "higher ones run first, -100 to 100")
	f.StringVar(&o.key, "key", "", "idempotency key: a repeated submission gets the same execution")
}

func (o *submitOptions) run(ctx context.Context, args []string, isCommand bool) error {
	req, err := o.request(args, isCommand)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	if o.each != "" {
		return o.batch(ctx, c, req)
	}
	return o.submit(ctx, c, req)
}

// submit submits one execution, and follows it or prints its id.
func (o *submitOptions) submit(ctx context.Context, c execution.ExecutionsClient, req *execution.SubmitRequest) error {
	resp, err := c.Submit(ctx, req)
	if err != nil {
		return err
	}
	e, err := decode(&resp.Execution)
	if err != nil {
		return err
	}
	if o.wait {
		return follow(ctx, o.Env, c, string(e.ID))
	}
	if o.JSON {
		return o.PrintJSON(e)
	}
	o.Printf("%s\n", e.ID)
	return nil
}

// batch submits an execution for each line of a file.
func (o *submitOptions) batch(ctx context.Context, c execution.ExecutionsClient, each *execution.SubmitRequest) error {
	in := o.In
	if o.each != "-" {
		f, err := os.Open(o.each)
		if err != nil {
			return exit.Usagef("%v", err)
		}
		defer f.Close()
		in = f
	}
	req := &execution.SubmitBatchRequest{Project: o.Project(), Key: each.Key}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		r := *each
		r.Key = ""
		if len(r.Command) > 0 {
			r.Command = append(r.Command[:len(r.Command):len(r.Command)], lines.Text())
		} else {
			r.Args = append(r.Args[:len(r.Args):len(r.Args)], lines.Text())
		}
		if req.Executions = append(req.Executions, r); len(req.Executions) > execution.MaxBatch {
			return exit.Usagef("%s has more than %d lines: submit several batches", o.each, execution.MaxBatch)
		}
	}
	if err := lines.Err(); err != nil {
		return exit.Usagef("read %s: %v", o.each, err)
	}
	if err := req.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	resp, err := c.SubmitBatch(ctx, req)
	if err != nil {
		return err
	}
	if o.wait {
		return wait(ctx, o.Env, []string{resp.Batch})
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"batch": resp.Batch, "executions": ids(resp)})
	}
	o.Printf("%s\n", resp.Batch)
	return nil
}

func ids(resp *execution.BatchResponse) []string {
	out := []string{}
	for _, r := range resp.Executions {
		out = append(out, string(r.ID))
	}
	return out
}

func (o *submitOptions) request(args []string, isCommand bool) (*execution.SubmitRequest, error) {
	env, err := o.exec.Environment()
	if err != nil {
		return nil, err
	}
	secrets, err := command.ParseEnv(o.secrets)
	if err != nil {
		return nil, err
	}
	egress, err := o.egress.Policy()
	if err != nil {
		return nil, err
	}
	req := &execution.SubmitRequest{
		Project: o.Project(), Language: o.language, Template: o.template, Image: o.image, Sandbox: id.Sandbox(o.sandbox), Agent: o.agent,
		Workdir: o.exec.Workdir, User: o.exec.User, Env: env, EnvSecret: secrets, CPUMillis: o.cpu.Ptr(), MemoryBytes: o.memory.Ptr(),
		Network: sandbox.NetworkMode(o.network), Egress: egress, Priority: &o.priority, Key: o.key, Confine: &o.confine,
		Retry: &execution.Retry{Attempts: o.attempts, Delay: o.delay},
	}
	for _, on := range o.retryOn {
		req.Retry.On = append(req.Retry.On, execution.Outcome(on))
	}
	if o.timeout != 0 {
		req.Timeout = &o.timeout
	}
	if o.after > 0 {
		at := time.Now().Add(o.after)
		req.NotBefore = &at
	}
	if isCommand {
		req.Command = args
	} else if req.Code, req.File, err = runcode.Program(o.In, o.language, args[0]); err != nil {
		return nil, err
	} else {
		req.Args = args[1:]
	}
	files, err := runcode.InputFiles(o.files)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		req.Files = append(req.Files, execution.InputFile{Path: f.Path, Data: f.Data, Executable: f.Executable})
	}
	for _, v := range o.volumes {
		name, path, ok := strings.Cut(v, ":")
		path, readOnly := strings.CutSuffix(path, ":ro")
		if !ok || name == "" || !strings.HasPrefix(path, "/") {
			return nil, exit.Usagef("--volume %s: give it as DISK:/PATH or DISK:/PATH:ro", v)
		}
		req.Volumes = append(req.Volumes, execution.Volume{Disk: name, Path: path, ReadOnly: &readOnly})
	}
	if o.stdin {
		if req.Stdin, err = io.ReadAll(io.LimitReader(o.In, maxStdin)); err != nil {
			return nil, exit.Usagef("read standard input: %v", err)
		}
	}
	if err := req.Validate(); err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	return req, nil
}
