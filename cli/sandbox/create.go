package sandbox

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// createFlags are the flags of commands that make a sandbox.
type createFlags struct {
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

	files, openFiles int64
	fileSize         command.Bytes
	bandwidth        command.Bytes

	network string
	ttl     time.Duration
	secrets []string
	labels  map[string]string
}

// AddFlags defines the flags.
func (o *createFlags) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.image, "image", "i", "", "image: debian (default without --app and --template), python, node, golang, or a reference in a registry")
	f.StringVar(&o.from, "template", "", "template: NAME, NAME:TAG or NAME:NUMBER; a warm sandbox of it serves if there is one")
	f.StringVar(&o.agent, "agent", "", "with --template: name of the agent, which gets the sandbox that it has, and keeps it")
	f.StringVarP(&o.app, "app", "a", "", "use the image, environment and secrets of this app")
	f.StringVarP(&o.service, "service", "s", "", "with --app: service of the app; default web")
	f.StringVar(&o.name, "name", "", "name of the sandbox")
	f.Var(&o.memory, "memory", "memory limit: 512MB, 2GiB")
	f.Var(&o.cpu, "cpu", "CPU limit: 0.5, 2, 500m")
	f.Var(&o.disk, "disk", "limit of written bytes: 1GiB")
	f.Int64Var(&o.pids, "pids", 0, "limit of processes")
	f.Int64Var(&o.files, "limit-files", 0, "limit of files that are made on its disk")
	f.Int64Var(&o.openFiles, "limit-open-files", 0, "limit of files that a process has open")
	f.Var(&o.fileSize, "limit-file-size", "limit of the size of a file: 1GiB")
	f.Var(&o.bandwidth, "limit-bandwidth", "limit of what is sent in a second, and of what is received: 10MB")
	f.StringVar(&o.network, "network", "", "network: bridge or none")
	f.DurationVar(&o.ttl, "ttl", 0, "lifetime, after which it is stopped")
	f.StringArrayVar(&o.secrets, "secret", nil, "secret environment variable, KEY=VALUE, or KEY for its value here")
	f.StringToStringVarP(&o.labels, "label", "l", nil, "label, key=value")
	o.sandbox.AddFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("network", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"bridge", "none"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
}

// defaultImage is the image without --image, --template and --app.
const defaultImage = "debian"

// request sets what the flags say in a request, and checks it.
func (o *createFlags) request(e *command.Env, req *sandbox.RunRequest) (*sandbox.RunRequest, error) {
	if o.image == "" && o.app == "" && o.from == "" {
		o.image = defaultImage
	}
	secrets, err := command.ParseSecrets(o.secrets)
	if err != nil {
		return nil, err
	}
	req.Project, req.Name, req.Labels, req.EnvSecret = e.Project(), o.name, o.labels, secrets
	req.Image, req.Template, req.Agent, req.App, req.Service = o.image, o.from, o.agent, o.app, o.service
	req.Network, req.CPUMillis = sandbox.NetworkMode(o.network), o.cpu.Ptr()
	req.MemoryBytes, req.DiskBytes = o.memory.Ptr(), o.disk.Ptr()
	req.FileBytes, req.BandwidthBytes = o.fileSize.Ptr(), o.bandwidth.Ptr()
	for to, n := range map[**int64]*int64{&req.PIDs: &o.pids, &req.DiskFiles: &o.files, &req.OpenFiles: &o.openFiles} {
		if *n > 0 {
			*to = n
		}
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

type createOptions struct {
	*command.Env
	createFlags
	process command.ProcessFlags
	wait    time.Duration
	show    func(*command.Env, *sandbox.Sandbox) error
}

func newCreate(e *command.Env) *cobra.Command { return NewCreate(e, printCreated) }

// NewCreate makes the command that creates a sandbox for later commands, which
// show prints.
func NewCreate(e *command.Env, show func(*command.Env, *sandbox.Sandbox) error) *cobra.Command {
	o := &createOptions{Env: e, show: show}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a sandbox for later commands",
		Long: `Creates a sandbox without a main process, or with --template claims a warm one, waits until it runs, and prints its id.
It stays until it is deleted, or until --ttl or --idle-timeout end it.`,
		Example: "  r sandbox create --template python --ttl 1h\n  r sandbox create --image debian --name box --idle-timeout 10m --auto-pause",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.createFlags.AddFlags(cmd)
	o.process.AddFlags(cmd)
	cmd.Flags().DurationVar(&o.wait, "wait", time.Minute, "time in which it must run; 0: do not wait")
	return cmd
}

// create creates a sandbox, or claims a warm one.
func create(ctx context.Context, c sandbox.SandboxesClient, req *sandbox.RunRequest) (*sandbox.Sandbox, error) {
	resp, err := c.Run(ctx, req)
	if err != nil {
		return nil, err
	}
	return entity.Decode[sandbox.Sandbox](&resp.Sandbox)
}

func (o *createOptions) run(ctx context.Context) error {
	env, err := command.ParseEnv(o.process.Env)
	if err != nil {
		return err
	}
	idle := true
	req, err := o.request(o.Env, &sandbox.RunRequest{Idle: &idle, Workdir: o.process.Workdir, User: o.process.User, Env: env})
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	s, err := create(ctx, c, req)
	if err != nil {
		return err
	}
	if o.wait > 0 {
		if s, err = o.await(ctx, c, s); err != nil {
			return err
		}
	}
	return o.show(o.Env, s)
}

// await waits until a new sandbox runs. An error names the sandbox, which stays.
func (o *createOptions) await(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Sandbox) (*sandbox.Sandbox, error) {
	wctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	resp, err := c.Wait(wctx, &sandbox.WaitRequest{Sandbox: s.GetID(), Until: sandbox.WaitUntilRunning})
	if errs.Is(err, errs.DeadlineExceeded) {
		return nil, errs.New(errs.DeadlineExceeded, "sandbox %s did not run within %v", s.ID, o.wait).
			WithHint("`r sandbox show %s` says why, `r sandbox delete %s` gives up", s.ID, s.ID)
	}
	if err != nil {
		return nil, errs.Wrap(err, "wait for sandbox %s", s.ID)
	}
	if s, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
		return nil, err
	}
	if s.Status.Phase.Ended() {
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s has ended (%s): %s", s.ID, reason(s), s.Status.Message)
	}
	return s, nil
}
