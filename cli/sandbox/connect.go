package sandbox

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// shell starts bash, or sh where there is none, as a login shell.
var shell = []string{"/bin/sh", "-c", `if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi`}

type connectOptions struct {
	*command.Env
	process command.ProcessFlags
}

func newConnect(e *command.Env) *cobra.Command {
	o := &connectOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "connect ID [-- COMMAND...]",
		Short: "Open a shell in a sandbox that outlives the connection",
		Long: `Runs a shell, or another command, on a terminal in a sandbox. Ctrl-] three times leaves it running, and so does a lost
connection or a closed terminal: r sandbox attach continues it. A paused sandbox is resumed.`,
		Example:           "  r sandbox connect sb-4k2j\n  r sandbox connect sb-4k2j -- python3",
		Args:              command.Args(1, -1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1:]) },
	}
	o.process.AddFlags(cmd)
	cmd.Flags().SetInterspersed(true)
	return cmd
}

func (o *connectOptions) run(ctx context.Context, name string, argv []string) error {
	if len(argv) == 0 {
		argv = shell
	}
	f := command.ExecFlags{ProcessFlags: o.process, TTY: true}
	req, err := f.Request(argv)
	if err != nil {
		return err
	}
	yes := true
	req.Detached = &yes
	s, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	req.Sandbox = s.GetID()
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	return attach.Code(attach.Run(ctx, o.Console, c, req))
}

func newAttach(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "attach ID [PROCESS]",
		Short: "Continue a process that was left running",
		Long: `Continues a process of r sandbox connect or r sandbox exec --detach: it prints the output that the sandbox kept, the
last 256 KiB, and passes input and output. A process that has ended is printed, and its exit code returned, once.
Without PROCESS it continues the latest one that runs. Another terminal that has the process loses it.`,
		Args:              command.Args(1, 2, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return attachTo(cmd.Context(), e, args[0], strings.Join(args[1:], ""))
		},
	}
}

func attachTo(ctx context.Context, e *command.Env, name, process string) error {
	s, c, err := target(ctx, e, name)
	if err != nil {
		return err
	}
	if s.Spec.Desired == sandbox.DesiredStatePaused { // whose processes cannot be listed
		wait := true
		if _, err := c.Resume(ctx, &sandbox.PauseRequest{Sandbox: s.GetID(), Wait: &wait}); err != nil {
			return err
		}
	}
	resp, err := c.Processes(ctx, &sandbox.SandboxRequest{Sandbox: s.GetID()})
	if err != nil {
		return err
	}
	for _, p := range resp.Processes {
		if p.Detached == nil || !*p.Detached || process != "" && p.ID != process || process == "" && p.ExitCode != nil {
			continue
		}
		tty := p.TTY != nil && *p.TTY
		return attach.Code(attach.Attach(ctx, e.Console, c, &sandbox.AttachRequest{Sandbox: s.GetID(), Process: p.ID}, tty))
	}
	missing := errs.New(errs.NotFound, "sandbox %s has no process that was left running", s.ID)
	if process != "" {
		missing = errs.New(errs.NotFound, "sandbox %s has no process %s that was left running", s.ID, process)
	}
	return missing.WithHint("`r sandbox ps %s` lists its processes, `r sandbox connect %s` opens a shell", s.ID, s.ID)
}

// start starts a process that goes on, and prints its id.
func (o *execOptions) start(ctx context.Context, c sandbox.SandboxesClient, req *sandbox.ExecRequest) error {
	yes, no := true, false
	req.Detached, req.Stdin = &yes, &no
	st, err := c.Exec(ctx, req)
	if err != nil {
		return err
	}
	defer st.Close()
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if m.Started == "" {
			continue
		}
		if m.Process == "" { // it could not be started: the reason and its code follow
			return o.notStarted(st)
		}
		if o.JSON {
			return o.PrintJSON(map[string]string{"sandbox": string(m.Started), "process": m.Process})
		}
		o.Printf("%s\n", m.Process)
		return nil
	}
}

func (o *execOptions) notStarted(st interface {
	Recv() (*sandbox.ExecOutput, error)
}) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if _, err := o.Err.Write(m.Stderr); err != nil {
			return err
		}
		if m.ExitCode != nil {
			return attach.Code(int(*m.ExitCode), nil)
		}
	}
}

func newProcesses(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "ps ID",
		Short: "List the processes of connect and exec",
		Long: `Lists the processes that commands such as connect and exec started in a sandbox, and those that were left running and
have ended. Processes that its main process started are not among them.`,
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return processes(cmd.Context(), e, args[0]) },
	}
}

func processes(ctx context.Context, e *command.Env, name string) error {
	s, c, err := target(ctx, e, name)
	if err != nil {
		return err
	}
	resp, err := c.Processes(ctx, &sandbox.SandboxRequest{Sandbox: s.GetID()})
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(append([]sandbox.Process{}, resp.Processes...)) // [] and not null
	}
	rows := make([][]string, len(resp.Processes))
	for i, p := range resp.Processes {
		state := e.Paint(console.Green, "running")
		if p.ExitCode != nil {
			state = e.Paint(console.Dim, "exit "+schema.Cell(*p.ExitCode))
		}
		kind := ""
		if p.Detached != nil && *p.Detached {
			kind = "detached"
		}
		rows[i] = []string{p.ID, schema.Cell(p.PID), state, kind, p.Tag, schema.CellAge(p.StartedAt, time.Now()), strings.Join(p.Command, " ")}
	}
	e.Table([]string{"PROCESS", "PID", "STATE", "KIND", "TAG", "AGE", "COMMAND"}, rows)
	return nil
}
