// Package sandbox has `r sandbox`: run, inspect and control single sandboxes.
package sandbox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/interpreter"
	"miren.dev/runtime/cli/logview"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("sandbox", "Run and control sandboxes", newRun(e), newList(e), newShow(e), newExec(e), newLogs(e), newStop(e), newDelete(e),
		newPause(e), newResume(e), newSnapshot(e), newFork(e), newExtend(e), newEgress(e), newCopy(e), newFiles(e),
		newCreate(e), newConnect(e), newAttach(e), newProcesses(e), newMetrics(e), newPorts(e), newForward(e), newPreview(e),
		interpreter.NewCode(e), interpreter.NewContext(e))
}

func client(ctx context.Context, e *command.Env) (sandbox.SandboxesClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return sandbox.NewSandboxesClient(c), nil
}

func find(ctx context.Context, e *command.Env, nameOrID string) (*sandbox.Sandbox, error) {
	return command.Find[sandbox.Sandbox](ctx, e, nameOrID)
}

// target returns a sandbox by its name or id, and the client for it.
func target(ctx context.Context, e *command.Env, nameOrID string) (*sandbox.Sandbox, sandbox.SandboxesClient, error) {
	s, err := find(ctx, e, nameOrID)
	if err != nil {
		return nil, nil, err
	}
	c, err := client(ctx, e)
	return s, c, err
}

type listOptions struct {
	*command.Env
	app  string
	all  bool
	wide bool
}

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{Env: e}
	cmd := command.List(e, "List the sandboxes", []string{sandbox.KindSandbox}, o.load, o.print)
	cmd.Aliases = nil // ls lists files
	cmd.Flags().StringVarP(&o.app, "app", "a", "", "only sandboxes of this app")
	cmd.Flags().BoolVar(&o.all, "all", false, "also sandboxes that have ended")
	cmd.Flags().BoolVar(&o.wide, "wide", false, "print more columns")
	return cmd
}

func (o *listOptions) load(ctx context.Context) ([]*sandbox.Sandbox, error) {
	var q entity.Query
	if o.app != "" {
		a, err := command.Find[app.App](ctx, o.Env, o.app)
		if err != nil {
			return nil, err
		}
		q.Index = []entity.IndexMatch{{Attr: sandbox.SandboxAttrApp, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(a.ID))}}
	}
	list, _, err := command.All[sandbox.Sandbox](ctx, o.Env, q)
	if !o.all {
		list = slices.DeleteFunc(list, func(s *sandbox.Sandbox) bool { return s.Status.Phase.Ended() })
	}
	slices.SortFunc(list, func(a, b *sandbox.Sandbox) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, err
}

func (o *listOptions) print(ctx context.Context, list []*sandbox.Sandbox) error {
	names, err := command.AppNames(ctx, o.Env)
	if err != nil {
		return err
	}
	headers := []string{"ID", "NAME", "STATE", "APP", "SERVICE", "ADDRESS", "REASON", "AGE"}
	if o.wide {
		headers = append(headers, "AGENT", "ORIGIN", "NODE", "IMAGE")
	}
	var rows [][]string
	for _, s := range list {
		row := []string{string(s.ID), s.Name, State(o.Console, s), names[s.Spec.App], s.Spec.Service, s.Status.Address, reason(s), schema.CellAge(s.CreatedAt, time.Now())}
		if o.wide {
			row = append(row, s.Spec.Agent, origin(s), string(s.Spec.Node), s.Spec.Template.Image)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 && o.Terminal {
		o.Notef("there are no sandboxes\n")
		return nil
	}
	o.Table(headers, rows)
	return nil
}

// State returns the state of a sandbox for a table.
func State(c *console.Console, s *sandbox.Sandbox) string {
	switch s.Status.Phase {
	case sandbox.SandboxPhaseRunning:
		if s.Status.Ready {
			return c.Paint(console.Green, "ready")
		}
		return c.Paint(console.Cyan, "running")
	case sandbox.SandboxPhaseFailed:
		return c.Paint(console.Red, "failed")
	case sandbox.SandboxPhaseStopped:
		return c.Paint(console.Dim, "stopped")
	}
	return c.Paint(console.Cyan, string(s.Status.Phase))
}

// origin returns by which way a request got a sandbox, or that it still waits
// for one.
func origin(s *sandbox.Sandbox) string {
	if s.Spec.WarmPool != "" {
		return "warm"
	}
	return string(s.Spec.Origin)
}

// reason returns the reason of the end of a sandbox: "exit 3", "oom".
func reason(s *sandbox.Sandbox) string {
	r := string(s.Status.Reason)
	if s.Status.Reason == sandbox.EndReasonExit && s.Status.ExitCode != nil {
		r += " " + schema.Cell(*s.Status.ExitCode)
	}
	return r
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Short:             "Show the details of a sandbox",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return show(cmd.Context(), e, args[0]) },
	}
}

func show(ctx context.Context, e *command.Env, name string) error {
	s, c, err := target(ctx, e, name)
	if err != nil {
		return err
	}
	var stats *sandbox.Stats
	if s.Status.Phase == sandbox.SandboxPhaseRunning {
		// A sandbox that ends meanwhile has none.
		if stats, err = c.Stats(ctx, &sandbox.SandboxRequest{Sandbox: s.GetID()}); err != nil && errs.Is(err, errs.PermissionDenied) {
			return err
		}
	}
	if e.JSON {
		return e.PrintJSON(map[string]any{"sandbox": s, "stats": stats})
	}
	line := func(name, value string) {
		if value != "" {
			e.Printf("%s %s\n", e.Paint(console.Dim, (name + "          ")[:10]), console.Cut(value, 0))
		}
	}
	t := &s.Spec.Template
	line("id", string(s.ID))
	line("name", s.Name)
	line("state", State(e.Console, s))
	line("reason", reason(s))
	line("message", s.Status.Message)
	line("address", s.Status.Address)
	line("listening", schema.Cell(s.Status.Listening))
	line("agent", s.Spec.Agent)
	line("origin", origin(s))
	line("image", t.Image)
	line("command", strings.Join(t.Command, " "))
	line("limits", command.Limits(t.Resources))
	line("network", string(t.Network))
	if stats != nil {
		line("uses", schema.CellBytes(stats.MemoryBytes)+" memory, "+stats.CPU.Round(time.Millisecond).String()+" CPU time, "+schema.Cell(stats.PIDs)+" processes")
	}
	line("node", string(s.Spec.Node))
	line("created", schema.CellAge(s.CreatedAt, time.Now())+" ago")
	if len(s.Status.LogTail) > 0 {
		e.Printf("%s\n", e.Paint(console.Dim, "last lines"))
		for _, l := range s.Status.LogTail {
			e.Printf("  | %s\n", console.Cut(l, 0))
		}
	}
	return nil
}

type execOptions struct {
	*command.Env
	exec   command.ExecFlags
	detach bool
}

func newExec(e *command.Env) *cobra.Command {
	o := &execOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "exec ID -- COMMAND...",
		Short: "Run a command in a sandbox",
		Long: `Runs a command in a sandbox and returns its exit code. Input and output pass through unchanged. With --detach the command
goes on without r, which prints its id: r sandbox attach continues it.`,
		Example:           "  r sandbox exec -t sb-4k2j -- bash\n  r sandbox exec --detach sb-4k2j -- make all\n  tar c . | r sandbox exec sb-4k2j -- tar x -C /tmp",
		Args:              command.Args(2, -1, "ID", "COMMAND"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1:]) },
	}
	o.exec.AddFlags(cmd)
	cmd.Flags().BoolVar(&o.detach, "detach", false, "leave it running and print its id")
	cmd.Flags().SetInterspersed(true)
	return cmd
}

func (o *execOptions) run(ctx context.Context, name string, argv []string) error {
	s, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	req, err := o.exec.Request(argv)
	if err != nil {
		return err
	}
	req.Sandbox = s.GetID()
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	if o.detach {
		return o.start(ctx, c, req)
	}
	return attach.Code(attach.Run(ctx, o.Console, c, req))
}

type logsOptions struct {
	*command.Env
	follow     bool
	tail       int64
	timestamps bool
}

func newLogs(e *command.Env) *cobra.Command {
	o := &logsOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "logs ID",
		Short:             "Print the output of its main process",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], cmd.Flags().Changed("tail"))
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "keep printing until the sandbox has ended")
	cmd.Flags().Int64VarP(&o.tail, "tail", "n", 0, "how many last lines, 0: none, -1: all; default: all")
	cmd.Flags().BoolVarP(&o.timestamps, "timestamps", "t", false, "print the time of each line")
	return cmd
}

func (o *logsOptions) run(ctx context.Context, name string, tailGiven bool) error {
	s, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	req := &sandbox.LogsRequest{Sandbox: s.GetID(), Follow: &o.follow}
	if tailGiven && o.tail >= 0 {
		req.Tail = &o.tail
	}
	v := &logview.View{Env: o.Env, Timestamps: o.timestamps}
	return v.Print(ctx, req)
}

type stopOptions struct {
	*command.Env
	detach bool
}

func newStop(e *command.Env) *cobra.Command {
	o := &stopOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "stop ID...",
		Short:             "Stop sandboxes",
		Args:              command.Args(1, -1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	cmd.Flags().BoolVar(&o.detach, "detach", false, "return without waiting for their end")
	return cmd
}

func (o *stopOptions) run(ctx context.Context, names []string) error {
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	wait := !o.detach
	for _, name := range names {
		s, err := find(ctx, o.Env, name)
		if err != nil {
			return err
		}
		resp, err := c.Stop(ctx, &sandbox.StopRequest{Sandbox: s.GetID(), Wait: &wait})
		if err != nil {
			return err
		}
		if s, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
			return err
		}
		if o.JSON {
			if err := o.PrintJSONLine(s); err != nil {
				return err
			}
			continue
		}
		word := "stopped"
		if !s.Status.Phase.Ended() {
			word = "stopping"
		}
		o.Printf("%s %s\n", word, s.ID)
	}
	return nil
}

func newDelete(e *command.Env) *cobra.Command {
	return newDeleteEach(e, "Delete sandboxes, stopping those that run", func(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Sandbox) error {
		return c.Delete(ctx, &sandbox.SandboxRequest{Sandbox: s.GetID()})
	})
}

// newDeleteEach makes a command that deletes entities by their names or ids, one
// after the other, until one cannot be deleted.
func newDeleteEach[T any, P entity.ObjectPtr[T]](e *command.Env, short string, remove func(context.Context, sandbox.SandboxesClient, P) error) *cobra.Command {
	return &cobra.Command{
		Use:               "delete ID...",
		Aliases:           []string{"rm"},
		Short:             short,
		Args:              command.Args(1, -1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, P(new(T)).EntityKind()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			for _, name := range args {
				o, err := command.Find[T, P](cmd.Context(), e, name)
				if err != nil {
					return err
				}
				if err := remove(cmd.Context(), c, o); err != nil {
					return err
				}
				if e.JSON {
					if err := e.PrintJSONLine(map[string]string{"event": "deleted", "id": string(o.GetMeta().ID)}); err != nil {
						return err
					}
				}
				e.Printf("deleted %s\n", o.GetMeta().ID)
			}
			return nil
		},
	}
}
