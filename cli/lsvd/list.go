package lsvd

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

type listOptions struct {
	base
	attached bool
}

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the volumes of a store",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.flags(cmd)
	cmd.Flags().BoolVar(&o.attached, "attached", false, "list the volumes that the disk daemon of this machine has attached, of any store")
	return cmd
}

// listAttached lists the disks of the daemon.
func (o *listOptions) listAttached(ctx context.Context) error {
	list := []api.Disk{}
	switch c, err := o.connect(ctx); {
	case err == nil:
		defer c.Close()
		r, err := c.List(ctx)
		if err != nil {
			return err
		}
		list = append(list, r.Disks...)
	case !errs.Is(err, errs.NotFound):
		return err
	}
	if o.JSON {
		return o.PrintJSON(list)
	}
	var rows [][]string
	for _, d := range list {
		var at []string
		for _, f := range d.Frontends {
			at = append(at, f.Address)
		}
		state := string(d.State)
		if d.State == api.DiskStateFailed {
			state = o.Paint(console.Red, state)
		}
		rows = append(rows, []string{label(&d), state, d.Store, strings.Join(at, " "), d.Message})
	}
	o.Table([]string{"VOLUME", "STATE", "STORE", "AT", "MESSAGE"}, rows)
	return nil
}

// volume is a volume as JSON.
type volume struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"`
	SizeBytes int64     `json:"size_bytes"`
	State     string    `json:"state"`
	Encrypted bool      `json:"encrypted"`
	Origin    string    `json:"origin,omitempty"`
	Stored    int64     `json:"stored_bytes"`
	Segments  int       `json:"segments"`
	Snapshots []string  `json:"snapshots"`
	Created   time.Time `json:"created_at"`
	Epoch     uint64    `json:"epoch"`
	Error     string    `json:"error,omitempty"`
	Attached  *api.Disk `json:"attached,omitempty"`
}

// States of a volume in lists.
const (
	stateNew        = "new"        // never opened
	stateDetached   = "detached"   // closed, with all data in the store
	stateOpen       = "open"       // open on some machine, or on one that crashed
	stateAttached   = "attached"   // the daemon of this machine has it open
	stateFailed     = "failed"     // the daemon has it attached, but it cannot be used
	stateUnreadable = "unreadable" // its manifest is damaged, or of a newer format
)

func stateOf(v *catalog.Volume) string {
	switch {
	case v.Err != nil:
		return stateUnreadable
	case v.Epoch == 0:
		return stateNew
	case v.Clean:
		return stateDetached
	}
	return stateOpen
}

func asVolume(v *catalog.Volume) volume {
	out := volume{ID: v.ID.String(), Name: v.Name, SizeBytes: v.Size, State: stateOf(v), Encrypted: v.Encrypted, Origin: v.Origin,
		Stored: v.Stored, Segments: v.Segments, Snapshots: v.Snapshots, Created: v.Created, Epoch: v.Epoch}
	if v.Err != nil {
		out.Error = v.Err.Error()
	}
	if out.Snapshots == nil {
		out.Snapshots = []string{}
	}
	return out
}

// attach adds the state that the daemon reports.
func (v *volume) attach(d *api.Disk) {
	if d == nil {
		return
	}
	v.Attached, v.State = d, stateAttached
	if d.SizeBytes != nil {
		v.SizeBytes = *d.SizeBytes
	}
	if d.State == api.DiskStateFailed {
		v.State = stateFailed
	}
}

func (b *base) paintState(s string) string {
	switch s {
	case stateAttached:
		return b.Paint(console.Green, s)
	case stateOpen:
		return b.Paint(console.Yellow, s)
	case stateUnreadable, stateFailed:
		return b.Paint(console.Red, s)
	}
	return s
}

func (o *listOptions) run(ctx context.Context) error {
	if o.attached {
		return o.listAttached(ctx)
	}
	st, url, err := o.open(ctx)
	if err != nil {
		return err
	}
	list, err := catalog.List(ctx, st)
	if err != nil {
		return err
	}
	attached, err := o.allAttached(ctx)
	if err != nil {
		return err
	}
	out := []volume{}
	for _, v := range list {
		x := asVolume(v)
		x.attach(attached[x.ID])
		out = append(out, x)
	}
	if o.JSON {
		return o.PrintJSON(out)
	}
	if len(list) == 0 && o.Terminal {
		o.Notef("there are no volumes in %s; `r lsvd create NAME --size 10G` creates one\n", url)
		return nil
	}
	var rows [][]string
	for _, v := range out {
		var at []string
		if v.Attached != nil {
			for _, f := range v.Attached.Frontends {
				at = append(at, f.Address)
			}
		}
		rows = append(rows, []string{cmp.Or(v.Name, v.ID), bytesCell(v.SizeBytes), bytesCell(v.Stored), o.paintState(v.State), strconv.Itoa(len(v.Snapshots)),
			schema.CellAge(v.Created, time.Now()), strings.Join(at, " ")})
	}
	o.Table([]string{"VOLUME", "SIZE", "STORED", "STATE", "SNAPSHOTS", "AGE", "AT"}, rows)
	return nil
}
