package lsvd

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

type checkOptions struct {
	base
	keyFile string
	shallow bool
}

func newCheck(e *command.Env) *cobra.Command {
	o := &checkOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "check VOLUME",
		Short: "Verify the objects of a volume and its snapshots in the store, and its log",
		Long: `Reads every object that the volume and its snapshots name, and verifies checksums, maps and data. The volume may be open.
It prints each damaged object with the ranges of the disk that are lost, and returns exit code 1. If this machine has
the log of the volume, and the volume is not open, it verifies the log too.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.keyFile, "key-file", "", "key of an encrypted volume")
	cmd.Flags().BoolVar(&o.shallow, "shallow", false, "verify only checksums, without decompression and decryption")
	return cmd
}

// damage is a damaged object as JSON.
type damage struct {
	Key       string          `json:"key"`
	Missing   bool            `json:"missing"`
	Error     string          `json:"error"`
	Volume    bool            `json:"volume"`
	Snapshots []string        `json:"snapshots,omitempty"`
	Ranges    []inspect.Range `json:"ranges,omitempty"`
}

// maxRanges bounds the printed ranges of one object.
const maxRanges = 8

func (o *checkOptions) run(ctx context.Context, arg string) error {
	name, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	st, url, v, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	key, err := host.ReadKey(o.keyFile)
	if err != nil {
		return err
	}
	p := o.Progress("check "+v.Label(), false)
	r, err := inspect.Check(ctx, st, v.ID, key, !o.shallow, p.Set)
	p.End()
	if err != nil {
		return err
	}
	log, unseen, err := o.checkLog(ctx, st, url, v, key)
	if err != nil {
		return err
	}
	if log.Damage != nil {
		r.Damage = append(r.Damage, inspect.Damage{Key: "local log", Err: log.Damage, Volume: true})
	}
	if o.JSON {
		list := []damage{}
		for _, d := range r.Damage {
			x := damage{Key: d.Key, Missing: d.Missing, Volume: d.Volume, Snapshots: d.Snapshot, Ranges: d.Ranges}
			if d.Err != nil {
				x.Error = d.Err.Error()
			}
			list = append(list, x)
		}
		if err := o.PrintJSON(map[string]any{"ok": r.OK(), "manifests": r.Manifests, "maps": r.Maps, "segments": r.Segments,
			"bytes": r.Bytes, "bytes_checked": r.Checked, "log": map[string]any{"checked": log.Here, "in_use": errs.Is(unseen, errs.Conflict), "bytes": log.Bytes}, "damage": list}); err != nil {
			return err
		}
		if !r.OK() {
			return exit.With(exit.Failed, nil)
		}
		return nil
	}
	if r.OK() {
		logged := ""
		if log.Here {
			logged = ", " + bytesCell(log.Bytes) + " of local log"
		}
		o.Printf("%s %s is sound: %d manifests, %d maps, %d segments, %s%s\n", o.Paint(console.Green, "✓"), v.Label(), r.Manifests, r.Maps, r.Segments, bytesCell(r.Checked), logged)
		switch {
		case errs.Is(unseen, errs.Conflict):
			o.Notef("the volume is open: its local log was not checked\n")
		case unseen != nil:
			o.Notef("its local log was not checked: %v\n", unseen)
		}
		return nil
	}
	for _, d := range r.Damage {
		what := "damaged"
		if d.Missing {
			what = "missing"
		}
		whom := d.Snapshot
		if d.Volume {
			whom = append([]string{"the volume"}, whom...)
		}
		o.Printf("%s %s is %s; used by %s\n", o.Paint(console.Red, "✗"), d.Key, what, strings.Join(whom, ", "))
		if d.Err != nil && !d.Missing {
			o.Printf("    %v\n", d.Err)
		}
		for i, x := range d.Ranges {
			if i == maxRanges {
				o.Printf("    and %d more ranges\n", len(d.Ranges)-i)
				break
			}
			o.Printf("    lost: %s at byte %d\n", bytesCell(x.Len), x.Off)
		}
	}
	if log.Damage != nil && len(r.Damage) == 1 {
		return errs.New(errs.Corrupt, "the local log of volume %s is damaged", v.Label()).WithHint("restore the log directory from a copy. "+
			"`r lsvd attach %s --accept-loss` opens the disk in its state before the damage", v.Label())
	}
	objects, also := len(r.Damage), ""
	if log.Damage != nil {
		objects, also = objects-1, ", and its local log is damaged"
	}
	return errs.New(errs.Corrupt, "%d of the %d objects of volume %s are damaged or missing%s", objects, r.Manifests+r.Maps+r.Segments, v.Label(), also).
		WithHint("%s", fmt.Sprintf("restore these objects from a copy of the store. Reads of the lost ranges fail; all others succeed. "+
			"`r lsvd attach %s --accept-loss` opens the disk if the damage prevents that", v.Label()))
}

// checkLog checks the log of the volume, if it is on this machine. unseen is
// the reason why the log was not checked: it is in use (Conflict), or
// PermissionDenied.
func (o *checkOptions) checkLog(ctx context.Context, st store.Store, url string, v *catalog.Volume, key []byte) (r inspect.LogReport, unseen, err error) {
	dir, err := o.disksDir()
	if err != nil {
		return r, nil, err
	}
	r, err = host.CheckLog(ctx, dir, st, v, url, key)
	if errs.Is(err, errs.Conflict) || errs.Is(err, errs.PermissionDenied) {
		return r, err, nil
	}
	return r, nil, err
}
