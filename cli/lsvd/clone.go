package lsvd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

type cloneOptions struct {
	base
	diskFlags
}

func newClone(e *command.Env) *cobra.Command {
	o := &cloneOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "clone VOLUME[@SNAPSHOT] NEW",
		Short:   "Make a volume from another one or its snapshot, without copying",
		Example: "  r lsvd clone data@monday test\n  r lsvd clone data test2",
		Long: `Makes a volume with the content of a snapshot, or with the present content of a volume. It copies no data: both volumes
share the objects in the store, and each adds its own writes. The origin and its snapshots may be deleted. The clone of
an encrypted volume needs --key-file, whose key opens the clone too; it is rotated on its own.`,
		Args:              command.Args(2, 2, "VOLUME", "NEW"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	o.flags(cmd)
	o.diskFlags.add(cmd)
	return cmd
}

func (o *cloneOptions) run(ctx context.Context, arg, name string) error {
	from, snap, err := volumeArg(arg, true)
	if err != nil {
		return err
	}
	if err := catalog.CheckName(name); err != nil {
		return err
	}
	st, url, v, err := o.find(ctx, from)
	if err != nil {
		return err
	}
	key, err := host.ReadKey(o.keyFile)
	if err == nil {
		err = host.CheckKey(v, key)
	}
	if err != nil {
		return err
	}
	began := time.Now()
	var id lsvd.ID
	err = o.withSnapshot(ctx, st, v, snap, &o.diskFlags, func(snap string) error {
		id, err = catalog.Clone(ctx, st, v.ID, snap, name, key)
		return err
	})
	if err != nil {
		return err
	}
	c, err := inspect.Info(ctx, st, id)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(created{ID: id.String(), Name: name, SizeBytes: c.Size, Store: url, Encrypted: c.Encrypted, Origin: c.Origin})
	}
	o.Printf("%s cloned %s to %s (%s), %s in %s\n", o.Paint(console.Green, "✓"), arg, name, id, bytesCell(c.Size), time.Since(began).Round(time.Millisecond))
	return nil
}

// withSnapshot calls f with a snapshot of the volume: the named one, or a
// temporary one, which it deletes afterwards.
func (b *base) withSnapshot(ctx context.Context, st store.Store, v *catalog.Volume, snap string, flags *diskFlags, f func(snap string) error) (err error) {
	if snap != "" {
		if err := f(snap); !errs.Is(err, errs.NotFound) {
			return err
		}
		return noSnapshot(v, snap)
	}
	var r [4]byte
	rand.Read(r[:])
	snap = "tmp-" + hex.EncodeToString(r[:])
	err = b.onDisk(ctx, st, v, flags, func(c *client, n *api.VolumeRequest) error {
		return c.Snapshot(ctx, &api.SnapshotRequest{Volume: n.Volume, Snapshot: snap})
	}, func(d *host.Disk) error { return d.Snapshot(ctx, snap) })
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := closing(ctx)
		defer cancel()
		if derr := lsvd.DeleteSnapshot(cctx, st, v.ID, snap); derr != nil && err == nil {
			err = errs.Wrap(derr, "delete the temporary snapshot %s@%s", v.Label(), snap)
		}
	}()
	return f(snap)
}
