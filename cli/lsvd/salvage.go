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
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

type salvageOptions struct {
	base
	as, keyFile  string
	discard, yes bool
}

func newSalvage(e *command.Env) *cobra.Command {
	o := &salvageOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "salvage VOLUME[@SNAPSHOT]",
		Short: "Make a volume of the writes that a takeover has left out",
		Example: "  r lsvd salvage data --as rescued\n" +
			"  r lsvd salvage data --discard",
		Long: `For the machine that had a volume open when another one took it over: its local log has acknowledged writes that the
volume does not have. The command makes a new volume, which is as this machine had it: the state that the takeover began
with (a snapshot takeover-EPOCH-SEQUENCE) and after it the writes of the log. It does not change the volume itself.
If the log is damaged, the new volume has the state before the damage.

The log stays until --discard removes it; with --as, when the new volume is whole. If this machine has several such logs
of the volume, VOLUME@SNAPSHOT names one. A command that was interrupted may be repeated.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.as, "as", "", "name of the new volume")
	cmd.Flags().StringVar(&o.keyFile, "key-file", "", "key of an encrypted volume; it opens the new one too")
	cmd.Flags().BoolVar(&o.discard, "discard", false, "remove the log for good")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "discard without asking")
	return cmd
}

// salvaged is a salvage as JSON.
type salvaged struct {
	ID        string  `json:"id,omitempty"` // of the new volume
	Name      string  `json:"name,omitempty"`
	Snapshot  string  `json:"snapshot"`
	Changes   int64   `json:"changes"`
	Bytes     int64   `json:"bytes"`
	Last      uint64  `json:"last"`
	Damaged   bool    `json:"damaged"`
	Flushed   uint64  `json:"flushed,omitempty"` // if damaged
	Discarded bool    `json:"discarded"`
	Seconds   float64 `json:"seconds"`
}

func (o *salvageOptions) run(ctx context.Context, arg string) error {
	volume, snap, err := volumeArg(arg, true)
	switch {
	case err != nil:
		return err
	case o.as == "" && !o.discard:
		return exit.Usagef("--as NEW names the volume that is made of the log; --discard removes the log")
	case o.as != "":
		if err := catalog.CheckName(o.as); err != nil {
			return err
		}
	}
	st, url, v, err := o.find(ctx, volume)
	if err != nil {
		return err
	}
	if _, ok := lsvd.ParseTakeover(snap); snap != "" && !ok {
		return exit.Usagef("%q is not the snapshot of a takeover (takeover-EPOCH-SEQUENCE)", snap)
	}
	state, err := o.state()
	if err != nil {
		return err
	}
	key, err := host.ReadKey(o.keyFile)
	if err != nil {
		return err
	}
	spec := host.SalvageSpec{Spec: host.Spec{Store: url, Volume: v.ID.String(), Key: key}, Snapshot: snap, As: o.as}
	out, began := salvaged{Snapshot: snap}, time.Now()
	if o.as != "" {
		id, t, s, err := state.Salvage(ctx, st, spec)
		if err != nil {
			return errs.Wrap(err, "salvage %s", arg)
		}
		out = salvaged{ID: id.String(), Name: o.as, Snapshot: t.String(), Changes: s.Changes, Bytes: s.Bytes, Last: s.Last, Damaged: s.Flushed > s.Last}
		if !o.JSON {
			o.Printf("%s made %s (%s): %s in %d changes after %s@%s\n", o.Paint(console.Green, "✓"), o.as, id, bytesCell(s.Bytes), s.Changes, v.Label(), t)
		}
		if out.Damaged {
			out.Flushed = s.Flushed
			o.Notef("the log is damaged after sequence number %d, and had flushed %d: %s has the state before the damage\n", s.Last, s.Flushed, o.as)
		}
		spec.Snapshot = t.String()
	}
	if o.discard {
		if err := o.remove(ctx, st, state, v, spec, &out); err != nil {
			return err
		}
	} else {
		o.Notef("the log stays; `r lsvd salvage %s@%s --discard` removes it\n", v.Label(), spec.Snapshot)
	}
	if out.Seconds = time.Since(began).Seconds(); o.JSON {
		return o.PrintJSON(out)
	}
	return nil
}

// remove discards the log. After a salvage that has every write of it, it does not ask.
func (o *salvageOptions) remove(ctx context.Context, st store.Store, state *host.State, v *catalog.Volume, spec host.SalvageSpec, out *salvaged) error {
	if !o.yes && (out.ID == "" || out.Damaged) {
		ok, err := o.Confirm("remove the writes of volume " + v.Label() + " that only this machine has")
		if err != nil {
			return err
		}
		if !ok {
			return errs.New(errs.Canceled, "the log stays")
		}
	}
	t, err := state.DiscardStranded(ctx, st, spec)
	if err != nil {
		return err
	}
	out.Snapshot, out.Discarded = t.String(), true
	if !o.JSON {
		o.Printf("%s removed the log of %s@%s\n", o.Paint(console.Green, "✓"), v.Label(), t)
	}
	o.Notef("`r lsvd snapshot delete %s@%s` frees the space of its snapshot\n", v.Label(), t)
	return nil
}

// noteStranded tells about stranded logs of a volume on this machine.
func (b *base) noteStranded(volume, label string) {
	id, err := lsvd.ParseID(volume)
	if err != nil {
		return
	}
	state, err := b.state()
	if err != nil {
		return // of another user
	}
	names, err := state.Stranded(id)
	for _, n := range names {
		if err == nil {
			b.Notef("writes that this machine had before a takeover are not in %s: `r lsvd salvage %s@%s --as NEW` makes a volume of them\n", label, label, n)
		}
	}
}
