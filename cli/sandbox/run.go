package sandbox

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/transfer"
	"miren.dev/runtime/entity"
)

type runOptions struct {
	*command.Env
	exec    command.ExecFlags
	sandbox command.SandboxFlags
	image   string
	from    string // template
	agent   string
	app     string
	service string
	name    string
	memory  command.Bytes
	disk    command.Bytes
	cpu     command.CPU
	pids    int64
	network string
	ttl     time.Duration
	detach  bool
	keep    bool
	wait    time.Duration
	out     []string
	secrets []string
	labels  map[string]string
}

func newRun(e *command.Env) *cobra.Command {
	o := &runOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND...",
		Short: "Run a command in a new sandbox",
		Long: `Runs a command in a new sandbox, returns its exit code, and deletes the sandbox. Input and output pass through
unchanged. With --detach the command becomes the main process of a sandbox that stays, and r prints its id.`,
		Example: "  r sandbox run --image python -- python3 -c 'print(6*7)'\n  r sandbox run -t --image debian -- bash\n  r sandbox run --app shop --detach --ttl 1h -- ./worker",
		Args:    command.Args(0, -1, "COMMAND"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.image, "image", "i", "", "image: debian (default without --app and --template), python, node, golang, or a reference in a registry")
	f.StringVar(&o.from, "template", "", "template: NAME, NAME:TAG or NAME:NUMBER; a warm sandbox of it serves if there is one")
	f.StringVar(&o.agent, "agent", "", "with --template: name of the agent, which gets the sandbox that it has; implies --keep")
	f.StringVarP(&o.app, "app", "a", "", "use the image, environment and secrets of this app")
	f.StringVarP(&o.service, "service", "s", "", "with --app: service of the app; default web")
	f.StringVar(&o.name, "name", "", "name of the sandbox")
	f.Var(&o.memory, "memory", "memory limit: 512MB, 2GiB")
	f.Var(&o.cpu, "cpu", "CPU limit: 0.5, 2, 500m")
	f.Var(&o.disk, "disk", "limit of written bytes: 1GiB")
	f.Int64Var(&o.pids, "pids", 0, "limit of processes")
	f.StringVar(&o.network, "network", "", "network: bridge or none")
	f.DurationVar(&o.ttl, "ttl", 0, "lifetime, after which it is stopped")
	f.BoolVar(&o.detach, "detach", false, "leave it running and print its id")
	f.BoolVar(&o.keep, "keep", false, "keep the sandbox after the command has ended")
	f.DurationVar(&o.wait, "wait", 0, "time in which the sandbox must run, 1s to 1h; default 1m")
	f.StringArrayVarP(&o.out, "out", "o", nil, "files and folders to copy out when the command has ended: PATH, or PATH:DESTINATION")
	f.StringArrayVar(&o.secrets, "secret", nil, "secret environment variable, KEY=VALUE, or KEY for its value here")
	f.StringToStringVarP(&o.labels, "label", "l", nil, "label, key=value")
	o.exec.AddFlags(cmd)
	o.sandbox.AddFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("network", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"bridge", "none"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
	return cmd
}

// defaultImage is the image without --image and --app.
const defaultImage = "debian"

func (o *runOptions) request(argv []string) (*sandbox.RunRequest, error) {
	if o.image == "" && o.app == "" && o.from == "" {
		o.image = defaultImage
	}
	if o.agent != "" {
		o.keep = true
	}
	if !o.detach && len(argv) == 0 {
		return nil, exit.Usagef("no command is given; put it after --, or run the image's own with --detach")
	}
	if o.detach && len(o.out) > 0 {
		return nil, exit.Usagef("--out and --detach exclude each other: `r sandbox cp` copies files out later")
	}
	if o.detach && o.exec.TTY {
		return nil, exit.Usagef("--tty and --detach exclude each other")
	}
	env, err := o.exec.Environment()
	if err != nil {
		return nil, err
	}
	secrets, err := command.ParseEnv(o.secrets)
	if err != nil {
		return nil, err
	}
	req := &sandbox.RunRequest{
		Project: o.Project(), Name: o.name, Labels: o.labels, Image: o.image, Template: o.from, Agent: o.agent, App: o.app, Service: o.service, Command: argv,
		Workdir: o.exec.Workdir, User: o.exec.User, Env: env, EnvSecret: secrets, Network: sandbox.NetworkMode(o.network),
		CPUMillis: o.cpu.Ptr(), MemoryBytes: o.memory.Ptr(), DiskBytes: o.disk.Ptr(),
	}
	if o.pids > 0 {
		req.PIDs = &o.pids
	}
	if o.ttl > 0 {
		req.TTL = &o.ttl
	}
	if err := o.sandbox.Apply(req); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	return req, nil
}

func (o *runOptions) run(ctx context.Context, argv []string) error {
	req, err := o.request(argv)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	if o.detach {
		return o.detached(ctx, c, req)
	}
	stdin := !o.exec.NoStdin
	once := &sandbox.RunOnceRequest{Sandbox: *req, Keep: &o.keep, TTY: &o.exec.TTY, Stdin: &stdin}
	if o.wait > 0 {
		once.StartTimeout = &o.wait
	}
	out := transfer.NewOutputs(o.out)
	once.Outputs = out.Paths
	code, err := attach.RunOnce(ctx, o.Console, c, once, out.Receive)
	return attach.Code(out.Finish(o.Console, code, err))
}

// detached creates a sandbox that stays and prints its id.
func (o *runOptions) detached(ctx context.Context, c sandbox.SandboxesClient, req *sandbox.RunRequest) error {
	resp, err := c.Run(ctx, req)
	if err != nil {
		return err
	}
	s, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(s)
	}
	o.Printf("%s\n", s.ID)
	return nil
}
