// Package session has `r session`: sandboxes and executions as the sessions of
// the REST face.
package session

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/execution"
	apisandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/session"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	cliexecution "miren.dev/runtime/cli/execution"
	"miren.dev/runtime/cli/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("session", "Create sessions and execute programs in them, as the REST API does",
		newCreate(e), newList(e), newShow(e), cliexecution.NewExecute(e), newExtend(e), newDelete(e))
}

func newCreate(e *command.Env) *cobra.Command {
	cmd := sandbox.NewCreate(e, func(e *command.Env, sb *apisandbox.Sandbox) error {
		if e.JSON {
			return e.PrintJSON(session.Of(sb))
		}
		e.Printf("%s\n", sb.ID)
		return nil
	})
	cmd.Short = "Create a persistent session"
	cmd.Long = `Creates a session, or with --template claims a warm one, waits until it runs, and prints its id. It is a sandbox: it stays
until it is deleted, or until --ttl or --idle-timeout end it. ` + "`r session execute --ephemeral`" + ` creates one that executes one
program and ends.`
	cmd.Example = "  r session create --template python --ttl 1h\n  r session create --name box --idle-timeout 10m --auto-pause"
	return cmd
}

// ephemeral reports whether an id is that of an ephemeral session.
func ephemeral(id string) bool { return strings.HasPrefix(id, execution.ExecutionKind.Prefix+"-") }

func sandboxes(ctx context.Context, e *command.Env) (apisandbox.SandboxesClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return apisandbox.NewSandboxesClient(c), nil
}

func executions(ctx context.Context, e *command.Env) (execution.ExecutionsClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return execution.NewExecutionsClient(c), nil
}

// States of a session that has ended.
var ended = []string{"ended", "failed"}

type listOptions struct {
	*command.Env
	state  string
	agent  string
	labels map[string]string
	all    bool
}

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{Env: e}
	cmd := command.List(e, "List the persistent sessions, newest first", []string{apisandbox.KindSandbox}, o.load, o.print)
	f := cmd.Flags()
	f.StringVar(&o.state, "state", "", "only sessions in this state: creating, running, pausing, paused, ending, ended, failed")
	f.StringVar(&o.agent, "agent", "", "only sessions of this agent")
	f.StringToStringVarP(&o.labels, "label", "l", nil, "only sessions with this label, key=value")
	f.BoolVar(&o.all, "all", false, "also sessions that have ended")
	return cmd
}

func (o *listOptions) load(ctx context.Context) ([]session.Session, error) {
	list, _, err := command.All[apisandbox.Sandbox](ctx, o.Env, entity.Query{Labels: o.labels})
	if err != nil {
		return nil, err
	}
	var out []session.Session
	for _, sb := range list {
		s := session.Of(sb)
		if session.PurposeOf(sb) == session.ForSession && o.wants(&s) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b session.Session) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

func (o *listOptions) wants(s *session.Session) bool {
	if o.state != "" {
		return s.State == o.state && (o.agent == "" || s.Agent == o.agent)
	}
	return (o.all || !slices.Contains(ended, s.State)) && (o.agent == "" || s.Agent == o.agent)
}

func (o *listOptions) print(_ context.Context, list []session.Session) error {
	if len(list) == 0 && o.Terminal {
		o.Notef("there are no sessions\n")
		return nil
	}
	var rows [][]string
	for i := range list {
		s := &list[i]
		rows = append(rows, []string{s.ID, s.Name, paint(o.Env, s.State), s.Agent, s.Image, expiry(s), schema.CellAge(s.CreatedAt, time.Now())})
	}
	o.Table([]string{"SESSION", "NAME", "STATE", "AGENT", "IMAGE", "EXPIRES", "AGE"}, rows)
	return nil
}

func paint(e *command.Env, state string) string {
	switch state {
	case "running":
		return e.Paint(console.Green, state)
	case "failed":
		return e.Paint(console.Red, state)
	case "ended":
		return e.Paint(console.Dim, state)
	}
	return e.Paint(console.Cyan, state)
}

func expiry(s *session.Session) string {
	if s.ExpiresAt == nil || s.EndedAt != nil {
		return ""
	}
	return s.ExpiresAt.Local().Format(time.DateTime)
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "show SESSION",
		Short:             "Show a session, persistent or ephemeral",
		Args:              command.Args(1, 1, "SESSION"),
		ValidArgsFunction: command.CompleteFirst(e, apisandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return show(cmd.Context(), e, args[0]) },
	}
}

func find(ctx context.Context, e *command.Env, name string) (session.Session, error) {
	if !ephemeral(name) {
		sb, err := command.Find[apisandbox.Sandbox](ctx, e, name)
		if err != nil {
			return session.Session{}, err
		}
		return session.Of(sb), nil
	}
	c, err := executions(ctx, e)
	if err != nil {
		return session.Session{}, err
	}
	resp, err := c.Get(ctx, &execution.ExecutionRequest{Project: e.Project(), Execution: name})
	if err != nil {
		return session.Session{}, err
	}
	x, err := entity.Decode[execution.Execution](&resp.Execution)
	if err != nil {
		return session.Session{}, err
	}
	return session.OfExecution(x), nil
}

func show(ctx context.Context, e *command.Env, name string) error {
	s, err := find(ctx, e, name)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(s)
	}
	line := func(name, value string) {
		if value != "" {
			e.Printf("%s %s\n", e.Paint(console.Dim, (name + "          ")[:10]), console.Cut(value, 0))
		}
	}
	line("id", s.ID)
	line("mode", s.Mode)
	line("name", s.Name)
	line("state", paint(e, s.State))
	line("reason", s.Reason)
	line("message", s.Message)
	if s.ExitCode != nil {
		line("exit code", schema.Cell(*s.ExitCode))
	}
	line("agent", s.Agent)
	line("image", s.Image)
	line("limits", command.Limits(apisandbox.Resources{CPUMillis: s.CPUMillis, MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes}))
	line("created", schema.CellAge(s.CreatedAt, time.Now())+" ago")
	line("expires", expiry(&s))
	return nil
}

func newExtend(e *command.Env) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:               "extend SESSION",
		Short:             "Change when a persistent session ends",
		Example:           "  r session extend sb-4k2j --ttl 2h",
		Args:              command.Args(1, 1, "SESSION"),
		ValidArgsFunction: command.CompleteFirst(e, apisandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return extend(cmd.Context(), e, args[0], ttl) },
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "it ends this long after now; default: never")
	return cmd
}

func extend(ctx context.Context, e *command.Env, name string, ttl time.Duration) error {
	if ephemeral(name) {
		return errs.New(errs.FailedPrecondition, "session %s is ephemeral: it ends with its program", name).
			WithHint("`r session create --ttl` makes one that can be extended")
	}
	sb, err := command.Find[apisandbox.Sandbox](ctx, e, name)
	if err != nil {
		return err
	}
	c, err := sandboxes(ctx, e)
	if err != nil {
		return err
	}
	req := &apisandbox.ExtendRequest{Sandbox: sb.GetID()}
	if ttl != 0 {
		req.TTL = &ttl
	}
	resp, err := c.Extend(ctx, req)
	if err != nil {
		return err
	}
	if sb, err = entity.Decode[apisandbox.Sandbox](&resp.Sandbox); err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(session.Of(sb))
	}
	e.Printf("extended %s\n", sb.ID)
	return nil
}

func newDelete(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "delete SESSION...",
		Aliases:           []string{"rm"},
		Short:             "Delete persistent sessions, cancel ephemeral ones",
		Args:              command.Args(1, -1, "SESSION"),
		ValidArgsFunction: command.CompleteFirst(e, apisandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := remove(cmd.Context(), e, name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// remove ends a session, and says so.
func remove(ctx context.Context, e *command.Env, name string) error {
	id, done := name, "cancelled"
	if ephemeral(name) {
		c, err := executions(ctx, e)
		if err != nil {
			return err
		}
		if _, err := c.Cancel(ctx, &execution.CancelRequest{Project: e.Project(), Execution: name}); err != nil {
			return err
		}
	} else {
		sb, err := command.Find[apisandbox.Sandbox](ctx, e, name)
		if err != nil {
			return err
		}
		c, err := sandboxes(ctx, e)
		if err != nil {
			return err
		}
		if err := c.Delete(ctx, &apisandbox.SandboxRequest{Sandbox: sb.GetID()}); err != nil {
			return err
		}
		id, done = string(sb.ID), "deleted"
	}
	if e.JSON {
		return e.PrintJSONLine(map[string]string{"event": done, "id": id})
	}
	e.Printf("%s %s\n", done, id)
	return nil
}
