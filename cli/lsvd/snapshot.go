package lsvd

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/suggest"
)

func newSnapshot(e *command.Env) *cobra.Command {
	return command.Group("snapshot", "Create, list and delete snapshots of volumes", newSnapshotCreate(e), newSnapshotList(e), newSnapshotDelete(e))
}

// onDisk calls daemon if the daemon has the volume attached; else it opens the
// disk, calls here with it, and closes it.
func (b *base) onDisk(ctx context.Context, st store.Store, v *catalog.Volume, f *diskFlags,
	daemon func(c *client, name *api.VolumeRequest) error, here func(d *host.Disk) error) (err error) {
	c, _, err := b.attached(ctx, v)
	if err != nil {
		return err
	}
	if c != nil {
		defer c.Close()
		return daemon(c, &api.VolumeRequest{Volume: v.ID.String()})
	}
	d, err := b.openDisk(ctx, v.ID.String(), f, nil)
	if err != nil {
		return err
	}
	defer b.closeDisk(ctx, d, &err)
	return here(d)
}

type snapshotOptions struct {
	base
	diskFlags
	yes bool
}

// parts resolves VOLUME@SNAPSHOT.
func (o *snapshotOptions) parts(ctx context.Context, arg string) (store.Store, *catalog.Volume, string, error) {
	name, snap, err := volumeArg(arg, true)
	if err != nil {
		return nil, nil, "", err
	}
	if snap == "" {
		return nil, nil, "", exit.Usagef("%q does not name a snapshot: write %s@NAME", arg, arg)
	}
	st, _, err := o.open(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	v, err := catalog.Find(ctx, st, name)
	return st, v, snap, err
}

func newSnapshotCreate(e *command.Env) *cobra.Command {
	o := &snapshotOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "create VOLUME@SNAPSHOT",
		Short:   "Create a snapshot of a volume",
		Example: "  r lsvd snapshot create data@monday",
		Long: `Creates a snapshot of the present state of a volume, without copying. The volume may be in use: the snapshot has every
acknowledged write, as after a power loss. To spare a file system the replay of its journal, freeze or unmount it first.`,
		Args: command.Args(1, 1, "VOLUME@SNAPSHOT"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.create(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	return cmd
}

func (o *snapshotOptions) create(ctx context.Context, arg string) error {
	st, v, snap, err := o.parts(ctx, arg)
	if err != nil {
		return err
	}
	began := time.Now()
	err = o.onDisk(ctx, st, v, &o.diskFlags, func(c *client, n *api.VolumeRequest) error {
		return c.Snapshot(ctx, &api.SnapshotRequest{Volume: n.Volume, Snapshot: snap})
	}, func(d *host.Disk) error { return d.Snapshot(ctx, snap) })
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"volume": v.Label(), "id": v.ID.String(), "snapshot": snap, "seconds": time.Since(began).Seconds()})
	}
	o.Printf("%s created %s@%s\n", o.Paint(console.Green, "✓"), v.Label(), snap)
	return nil
}

func newSnapshotList(e *command.Env) *cobra.Command {
	o := &snapshotOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:               "list VOLUME",
		Aliases:           []string{"ls"},
		Short:             "List the snapshots of a volume",
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.list(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	return cmd
}

// snapshot is a snapshot as JSON.
type snapshot struct {
	Name      string    `json:"name"`
	SizeBytes int64     `json:"size_bytes"`
	Stored    int64     `json:"stored_bytes"`
	Created   time.Time `json:"created_at"`
}

func (o *snapshotOptions) list(ctx context.Context, arg string) error {
	name, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	st, _, v, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	out := []snapshot{}
	var rows [][]string
	for _, s := range v.Snapshots {
		i, err := inspect.InfoSnapshot(ctx, st, v.ID, s)
		if errs.Is(err, errs.NotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return err
		}
		out = append(out, snapshot{s, i.Size, i.Stored, i.Created})
		rows = append(rows, []string{v.Label() + "@" + s, bytesCell(i.Size), bytesCell(i.Stored), schema.CellAge(i.Created, time.Now())})
	}
	if o.JSON {
		return o.PrintJSON(out)
	}
	o.Table([]string{"SNAPSHOT", "SIZE", "STORED", "AGE"}, rows)
	return nil
}

func newSnapshotDelete(e *command.Env) *cobra.Command {
	o := &snapshotOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "delete VOLUME@SNAPSHOT",
		Aliases: []string{"rm"},
		Short:   "Delete a snapshot",
		Long:    `Deletes a snapshot and the objects that only the snapshot uses. Clones of the snapshot are not affected.`,
		Args:    command.Args(1, 1, "VOLUME@SNAPSHOT"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.remove(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "delete without asking")
	return cmd
}

func (o *snapshotOptions) remove(ctx context.Context, arg string) error {
	st, v, snap, err := o.parts(ctx, arg)
	if err != nil {
		return err
	}
	if _, err := inspect.InfoSnapshot(ctx, st, v.ID, snap); errs.Is(err, errs.NotFound) {
		return noSnapshot(v, snap)
	}
	if !o.yes {
		ok, err := o.Confirm("delete snapshot " + v.Label() + "@" + snap + " permanently")
		if err != nil {
			return err
		}
		if !ok {
			return errs.New(errs.Canceled, "nothing was deleted")
		}
	}
	if err := lsvd.DeleteSnapshot(ctx, st, v.ID, snap); err != nil {
		return err
	}
	_, freed, err := lsvd.Sweep(ctx, st)
	if err != nil {
		e := errs.New(errs.ClassOf(err), "the snapshot is deleted, but its space is not free yet: %w", err)
		return e.WithHint("`r lsvd gc` tries again")
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"volume": v.Label(), "snapshot": snap, "bytes_freed": freed})
	}
	o.Printf("%s deleted %s@%s, %s freed\n", o.Paint(console.Green, "✓"), v.Label(), snap, bytesCell(freed))
	return nil
}

func noSnapshot(v *catalog.Volume, snap string) error {
	e := errs.New(errs.NotFound, "volume %s has no snapshot %q", v.Label(), snap)
	if s := suggest.Nearest(snap, v.Snapshots); s != "" {
		return e.WithHint("did you mean %q?", s)
	}
	return e.WithHint("`r lsvd snapshot list %s` lists its snapshots", v.Label())
}
