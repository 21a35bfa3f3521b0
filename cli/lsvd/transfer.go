package lsvd

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

type transferOptions struct {
	base
	as, keyFile string
	remove      bool
}

func newTransfer(e *command.Env) *cobra.Command {
	o := &transferOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "copy VOLUME@SNAPSHOT STORE",
		Short:   "Copy a snapshot of a volume to another store",
		Example: "  r lsvd copy data@monday /mnt/backup\n  r lsvd copy data@monday /mnt/backup --as data",
		Long: `Copies a snapshot to another store, a directory or a URL. It sends only what earlier copies of the volume have not sent,
and reads and compares each object that it sends. A copy that was interrupted is completed by the same command. The
volume may be in use meanwhile.

--as makes a volume of that name in the other store from the copy; it shares the data of the copy. That of an encrypted
volume needs --key-file. --delete deletes a copy, also an incomplete one; if the volume is gone, name it by its ID.`,
		Args:              command.Args(2, 2, "VOLUME@SNAPSHOT", "STORE"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.as, "as", "", "make a volume of this name from the copy in the other store")
	cmd.Flags().BoolVar(&o.remove, "delete", false, "delete the copy and what only it uses in the other store")
	cmd.Flags().StringVar(&o.keyFile, "key-file", "", "file with the key of an encrypted volume (for --as)")
	return cmd
}

// transferred is a copy as JSON.
type transferred struct {
	ID          string  `json:"id"`
	Snapshot    string  `json:"snapshot"`
	To          string  `json:"to"`
	Objects     int64   `json:"objects"`
	Bytes       int64   `json:"bytes"`
	SentObjects int64   `json:"sent_objects"`
	SentBytes   int64   `json:"sent_bytes"`
	Volume      string  `json:"volume,omitempty"` // ID of the volume made by --as
	Seconds     float64 `json:"seconds"`
}

func (o *transferOptions) run(ctx context.Context, arg, to string) error {
	name, snap, err := volumeArg(arg, true)
	if err != nil {
		return err
	}
	if snap == "" {
		return exit.Usagef("%q does not name a snapshot: write %s@NAME (`r lsvd snapshot create` makes one)", arg, arg)
	}
	if o.remove {
		return o.delete(ctx, name, snap, to)
	}
	if o.as != "" {
		if err := catalog.CheckName(o.as); err != nil {
			return err
		}
	}
	st, url, v, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	key, err := host.ReadKey(o.keyFile)
	if err == nil && (o.as != "" || key != nil) {
		err = host.CheckKey(v, key)
	}
	if err != nil {
		return err
	}
	if to, err = host.StoreURL(to); err != nil {
		return err
	}
	other, to, err := host.OpenStore(ctx, to)
	if err != nil {
		return errs.Wrap(err, "store %s", to)
	}
	if to == url {
		return exit.Usagef("%s is the store of the volume: name another one, or use `r lsvd clone`", to)
	}
	info, err := inspect.InfoSnapshot(ctx, st, v.ID, snap)
	if errs.Is(err, errs.NotFound) {
		return noSnapshot(v, snap)
	}
	if err != nil {
		return err
	}
	began := time.Now()
	p := o.Progress("copy "+arg, true)
	s, err := lsvd.Copy(ctx, st, v.ID, snap, other, snap, func(s lsvd.CopyStats) { p.Set(min(s.Bytes, info.Stored), info.Stored) })
	p.End()
	if err != nil {
		return errs.Wrap(err, "copy %s", arg)
	}
	out := transferred{ID: v.ID.String(), Snapshot: snap, To: to, Objects: s.Objects, Bytes: s.Bytes, SentObjects: s.SentObjects, SentBytes: s.SentBytes}
	if o.as != "" {
		made, err := catalog.Clone(ctx, other, v.ID, snap, o.as, key)
		if err != nil {
			return errs.Wrap(err, "the copy is complete; make volume %s of it", o.as)
		}
		out.Volume = made.String()
	}
	if out.Seconds = time.Since(began).Seconds(); o.JSON {
		return o.PrintJSON(out)
	}
	o.Printf("%s copied %s to %s: %s, of which %s were sent\n", o.Paint(console.Green, "✓"), arg, to, bytesCell(s.Bytes), bytesCell(s.SentBytes))
	if o.as != "" {
		o.Printf("%s made %s (%s) of it\n", o.Paint(console.Green, "✓"), o.as, out.Volume)
	}
	return nil
}

// delete deletes a copy.
func (o *transferOptions) delete(ctx context.Context, volume, snap, to string) error {
	if o.as != "" {
		return exit.Usagef("--delete and --as exclude each other")
	}
	id, err := lsvd.ParseID(volume)
	if err != nil {
		_, _, v, err := o.find(ctx, volume)
		if err != nil {
			return err
		}
		id = v.ID
	}
	if to, err = host.StoreURL(to); err != nil {
		return err
	}
	other, to, err := host.OpenStore(ctx, to)
	if err != nil {
		return errs.Wrap(err, "store %s", to)
	}
	// Of a volume in its own store it is a snapshot.
	if _, err := catalog.Find(ctx, other, id.String()); err == nil {
		return errs.New(errs.FailedPrecondition, "%s has volume %s itself: %s is a snapshot there, not a copy", to, volume, snap).With("reason", "same_store").
			WithHint("`r lsvd snapshot delete` deletes it")
	} else if !errs.Is(err, errs.NotFound) {
		return err
	}
	if err := lsvd.DeleteCopy(ctx, other, id, snap); err != nil {
		return err
	}
	_, freed, err := lsvd.Sweep(ctx, other)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"id": id.String(), "snapshot": snap, "to": to, "freed_bytes": freed})
	}
	o.Printf("%s deleted the copy %s@%s in %s (%s freed)\n", o.Paint(console.Green, "✓"), volume, snap, to, bytesCell(freed))
	return nil
}
