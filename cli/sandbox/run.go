package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// runLease is how long a sandbox outlives its command if the command is killed.
const runLease = 60 * time.Second

// idle is the main process of a sandbox whose command runs beside it.
var idle = []string{"sleep", "infinity"}

type runOptions struct {
	*command.Env
	exec    command.ExecFlags
	image   string
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
	f.StringVarP(&o.image, "image", "i", "", "image: debian (default without --app), python, node, golang, or a reference in a registry")
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
	f.StringArrayVar(&o.secrets, "secret", nil, "secret environment variable, KEY=VALUE, or KEY for its value here")
	f.StringToStringVarP(&o.labels, "label", "l", nil, "label, key=value")
	o.exec.AddFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("network", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"bridge", "none"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
	return cmd
}

// defaultImage is the image without --image and --app.
const defaultImage = "debian"

func (o *runOptions) request(argv []string) (*sandbox.RunRequest, error) {
	if o.image == "" && o.app == "" {
		o.image = defaultImage
	}
	if !o.detach && len(argv) == 0 {
		return nil, exit.Usagef("no command is given; put it after --, or run that of the image with --detach")
	}
	if o.detach && o.exec.TTY {
		return nil, exit.Usagef("--tty and --detach exclude each other")
	}
	env, err := command.ParseEnv(o.exec.Env)
	if err != nil {
		return nil, err
	}
	secrets, err := command.ParseEnv(o.secrets)
	if err != nil {
		return nil, err
	}
	req := &sandbox.RunRequest{
		Project: o.Project(), Name: o.name, Labels: o.labels, Image: o.image, App: o.app, Service: o.service, Command: argv,
		Workdir: o.exec.Workdir, User: o.exec.User, Env: env, EnvSecret: secrets, Network: sandbox.NetworkMode(o.network),
		CPUMillis: o.cpu.Ptr(), MemoryBytes: o.memory.Ptr(), DiskBytes: o.disk.Ptr(),
	}
	if o.pids > 0 {
		req.PIDs = &o.pids
	}
	if o.ttl > 0 {
		req.TTL = &o.ttl
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
	if !o.detach {
		req.Command = idle
		soon := time.Second
		req.StopTimeout = &soon
	}
	resp, err := c.Run(ctx, req)
	if err != nil {
		return err
	}
	s, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	if err != nil {
		return err
	}
	if o.detach {
		if o.JSON {
			return o.PrintJSON(s)
		}
		o.Printf("%s\n", s.ID)
		return nil
	}
	code, err := o.attached(ctx, c, s, argv)
	if !o.keep {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if derr := c.Delete(dctx, &sandbox.SandboxRequest{Sandbox: s.GetID()}); derr != nil && !errs.Is(derr, errs.NotFound) {
			o.Notef("the sandbox %s could not be deleted: %v\n", s.ID, derr)
		}
	}
	return attach.Code(code, err)
}

// attached runs the command in the sandbox, which is deleted after this process
// has ended, unless --keep is given.
func (o *runOptions) attached(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Sandbox, argv []string) (int, error) {
	if !o.keep {
		release := o.bind(ctx, s)
		defer release()
	}
	s, err := o.await(ctx, c, s)
	if err != nil {
		return 0, err
	}
	exec := o.exec
	exec.Env = nil // the sandbox has it
	req, err := exec.Request(argv)
	if err != nil {
		return 0, err
	}
	req.Sandbox = s.GetID()
	return attach.Run(ctx, o.Console, c, req, nil)
}

// await waits until the sandbox runs. The error has the reason if it does not start.
func (o *runOptions) await(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Sandbox) (*sandbox.Sandbox, error) {
	live := o.Live()
	done := make(chan struct{})
	drawn := make(chan struct{})
	go func() {
		defer close(drawn)
		if o.Quiet || o.JSON || !o.Terminal {
			return
		}
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		began := time.Now()
		for i := 0; ; i++ {
			select {
			case <-done:
				live.Draw(nil)
				return
			case <-tick.C:
				live.Draw([]string{fmt.Sprintf("%s starting %s %s", o.Paint(console.Cyan, console.Spinner(i)), command.ShortID(s.ID),
					o.Paint(console.Dim, fmt.Sprintf("%.1fs", time.Since(began).Seconds())))})
			}
		}
	}()
	resp, err := c.Wait(ctx, &sandbox.WaitRequest{Sandbox: s.GetID(), Until: sandbox.WaitUntilRunning})
	close(done)
	<-drawn
	if err != nil {
		return nil, err
	}
	if s, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
		return nil, err
	}
	if !s.Status.Phase.Ended() {
		return s, nil
	}
	text := "the sandbox did not start"
	if s.Status.Message != "" {
		text += ": " + s.Status.Message
	}
	e := errs.New(errs.FailedPrecondition, "%s (%s)", text, s.Status.Reason)
	if len(s.Status.LogTail) > 0 {
		return nil, e.WithHint("it printed:\n%s", schema.Cell(s.Status.LogTail))
	}
	return nil, e
}

// bind binds the sandbox to a lease of this process, so that it is deleted if
// the process is killed. A client without the permission for that has no lease.
func (o *runOptions) bind(ctx context.Context, s *sandbox.Sandbox) (release func()) {
	store, err := o.Store(ctx)
	if err != nil {
		return func() {}
	}
	lease, err := store.Grant(ctx, runLease)
	if err != nil {
		return func() {}
	}
	if _, err := entity.ModifySpec(ctx, store, s.GetID(), func(s *sandbox.Sandbox) error {
		s.Lease = lease.ID
		return nil
	}); err != nil {
		o.Notef("sandbox %s will stay if this command is killed: %v\n", s.ID, err)
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(runLease / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = store.KeepAlive(ctx, lease.ID) // the next tick comes before it expires
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
