package sandbox

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func newPause(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "pause ID",
		Short: "Save a sandbox and end its processes, which resume continues",
		Long: `Saves the memory and the files of a sandbox on its node and ends its processes. It takes no memory and no processor then.
Its next exec, or resume, continues it where it was.`,
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return change(cmd.Context(), e, args[0], "paused", func(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Sandbox) (*sandbox.SandboxResponse, error) {
				wait := true
				return c.Pause(ctx, &sandbox.PauseRequest{Sandbox: s.GetID(), Wait: &wait})
			})
		},
	}
}

func newResume(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "resume ID",
		Short:             "Continue a paused sandbox",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return change(cmd.Context(), e, args[0], "resumed", func(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Sandbox) (*sandbox.SandboxResponse, error) {
				wait := true
				return c.Resume(ctx, &sandbox.PauseRequest{Sandbox: s.GetID(), Wait: &wait})
			})
		},
	}
}

func newExtend(e *command.Env) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:               "extend ID",
		Short:             "Change when a sandbox ends",
		Example:           "  r sandbox extend sb-4k2j --ttl 2h",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return change(cmd.Context(), e, args[0], "extended", func(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Sandbox) (*sandbox.SandboxResponse, error) {
				req := &sandbox.ExtendRequest{Sandbox: s.GetID()}
				if ttl != 0 {
					req.TTL = &ttl
				}
				return c.Extend(ctx, req)
			})
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "it ends this long after now; default: never")
	return cmd
}

// change calls the server for a sandbox and prints the change.
func change(ctx context.Context, e *command.Env, name, done string, call func(context.Context, sandbox.SandboxesClient, *sandbox.Sandbox) (*sandbox.SandboxResponse, error)) error {
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	s, err := find(ctx, e, name)
	if err != nil {
		return err
	}
	resp, err := call(ctx, c, s)
	if err != nil {
		return err
	}
	if s, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
		return err
	}
	if s.Status.Phase.Ended() && done != "extended" {
		return errs.New(errs.FailedPrecondition, "sandbox %s has ended (%s): %s", s.ID, s.Status.Reason, s.Status.Message)
	}
	if e.JSON {
		return e.PrintJSON(s)
	}
	e.Printf("%s %s\n", done, s.ID)
	return nil
}

type forkOptions struct {
	*command.Env
	name   string
	store  string
	count  int64
	env    []string
	ttl    time.Duration
	labels map[string]string
}

func newSnapshot(e *command.Env) *cobra.Command {
	o := &forkOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "snapshot ID",
		Short:             "Take a snapshot of a sandbox, which goes on",
		Long:              "Saves memory and files of a sandbox, which goes on, and prints the id of the snapshot. `r sandbox fork` makes sandboxes of it.",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.snapshot(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&o.name, "name", "", "name of the snapshot")
	cmd.Flags().StringVar(&o.store, "store", "", "URL of an object store for a copy, of which other nodes can make sandboxes")
	cmd.Flags().StringToStringVarP(&o.labels, "label", "l", nil, "label, key=value")
	return cmd
}

func (o *forkOptions) snapshot(ctx context.Context, name string) error {
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	s, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	resp, err := c.Snapshot(ctx, &sandbox.SnapshotRequest{Sandbox: s.GetID(), Name: o.name, Labels: o.labels, Store: o.store})
	if err != nil {
		return err
	}
	snap, err := entity.Decode[sandbox.Snapshot](&resp.Snapshot)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(snap)
	}
	o.Printf("%s\n", snap.ID)
	return nil
}

func newFork(e *command.Env) *cobra.Command {
	o := &forkOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "fork ID",
		Short: "Make sandboxes that go on from where a sandbox or a snapshot is",
		Long: `Makes sandboxes that go on from where a sandbox is, which goes on too, or from a snapshot. Each has processes, memory
and files of its own from then on, and an id, a host name and an address of its own. Prints their ids.`,
		Example:           "  r sandbox fork sb-4k2j --count 5\n  r sandbox fork snap-7gq1 -e SEED=2",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.fork(cmd.Context(), args[0]) },
	}
	cmd.Flags().Int64VarP(&o.count, "count", "n", 1, "number of sandboxes, 1 to 100")
	cmd.Flags().StringArrayVarP(&o.env, "env", "e", nil, "environment variable of later processes, KEY=VALUE, or KEY for its value here")
	cmd.Flags().DurationVar(&o.ttl, "ttl", 0, "lifetime of each, after which it is stopped")
	cmd.Flags().StringToStringVarP(&o.labels, "label", "l", nil, "label, key=value")
	return cmd
}

func (o *forkOptions) fork(ctx context.Context, name string) error {
	env, err := command.ParseEnv(o.env)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	req := &sandbox.ForkRequest{Count: &o.count, Env: env, Labels: o.labels}
	if o.ttl > 0 {
		req.TTL = &o.ttl
	}
	s, err := find(ctx, o.Env, name)
	if errs.Is(err, errs.NotFound) {
		snap, serr := command.Find[sandbox.Snapshot](ctx, o.Env, name)
		if serr != nil {
			return err
		}
		req.Snapshot = snap.GetID()
	} else if err != nil {
		return err
	} else {
		req.Sandbox = s.GetID()
	}
	resp, err := c.Fork(ctx, req)
	if err != nil {
		return err
	}
	var forks []*sandbox.Sandbox
	for i := range resp.Sandboxes {
		f, err := entity.Decode[sandbox.Sandbox](&resp.Sandboxes[i])
		if err != nil {
			return err
		}
		forks = append(forks, f)
	}
	if o.JSON {
		return o.PrintJSON(forks)
	}
	for _, f := range forks {
		o.Printf("%s\n", f.ID)
	}
	return nil
}

// NewSnapshots makes the commands of snapshots.
func NewSnapshots(e *command.Env) *cobra.Command {
	o := &forkOptions{Env: e}
	return command.Group("snapshot", "Snapshots of sandboxes",
		command.List(e, "List the snapshots", []string{sandbox.KindSnapshot}, o.load, o.print), newDeleteSnapshot(e))
}

func (o *forkOptions) load(ctx context.Context) ([]*sandbox.Snapshot, error) {
	list, _, err := command.All[sandbox.Snapshot](ctx, o.Env, entity.Query{})
	return list, err
}

func (o *forkOptions) print(_ context.Context, list []*sandbox.Snapshot) error {
	if len(list) == 0 && o.Terminal {
		o.Notef("there are no snapshots: `r sandbox snapshot ID` takes one\n")
		return nil
	}
	var rows [][]string
	for _, s := range list {
		rows = append(rows, []string{
			string(s.ID), s.Name, string(s.Status.Phase), string(s.Spec.Sandbox), schema.CellBytes(s.Status.Bytes), schema.CellAge(s.CreatedAt, time.Now()),
		})
	}
	o.Table([]string{"ID", "NAME", "STATE", "SANDBOX", "SIZE", "AGE"}, rows)
	return nil
}

func newDeleteSnapshot(e *command.Env) *cobra.Command {
	return newDeleteEach(e, "Delete snapshots", func(ctx context.Context, c sandbox.SandboxesClient, s *sandbox.Snapshot) error {
		return c.DeleteSnapshot(ctx, &sandbox.DeleteSnapshotRequest{Snapshot: s.GetID()})
	})
}
