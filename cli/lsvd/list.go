package lsvd

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/pkg/schema"
)

type listOptions struct{ base }

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{newBase(e)}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the volumes of a store",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.flags(cmd)
	return cmd
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
}

// Where a volume is, as lists show it.
const (
	stateNew        = "new"        // never opened
	stateDetached   = "detached"   // closed, everything in the store
	stateOpen       = "open"       // open somewhere, or was when its machine died
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

func (o *listOptions) run(ctx context.Context) error {
	st, url, err := o.open(ctx)
	if err != nil {
		return err
	}
	list, err := catalog.List(ctx, st)
	if err != nil {
		return err
	}
	if o.JSON {
		out := []volume{}
		for _, v := range list {
			out = append(out, asVolume(v))
		}
		return o.PrintJSON(out)
	}
	if len(list) == 0 && o.Terminal {
		o.Notef("there are no volumes in %s; `r lsvd create NAME --size 10G` makes one\n", url)
		return nil
	}
	var rows [][]string
	for _, v := range list {
		state := stateOf(v)
		switch state {
		case stateOpen:
			state = o.Paint(console.Yellow, state)
		case stateUnreadable:
			state = o.Paint(console.Red, state)
		}
		rows = append(rows, []string{v.Label(), bytesCell(v.Size), bytesCell(v.Stored), state, strconv.Itoa(len(v.Snapshots)), schema.CellAge(v.Created, time.Now())})
	}
	o.Table([]string{"VOLUME", "SIZE", "STORED", "STATE", "SNAPSHOTS", "AGE"}, rows)
	return nil
}
