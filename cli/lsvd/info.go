package lsvd

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/lsvd/catalog"
)

type infoOptions struct{ base }

func newInfo(e *command.Env) *cobra.Command {
	o := &infoOptions{newBase(e)}
	cmd := &cobra.Command{
		Use:               "info VOLUME",
		Aliases:           []string{"show"},
		Short:             "Show a volume",
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	return cmd
}

// info is what `r lsvd info --json` prints.
type info struct {
	volume
	Store string         `json:"store"`
	Owner *catalog.Owner `json:"owner,omitempty"`
}

func (o *infoOptions) run(ctx context.Context, arg string) error {
	name, _, err := volumeArg(arg, false)
	if err != nil {
		return err
	}
	st, url, err := o.open(ctx)
	if err != nil {
		return err
	}
	v, err := catalog.Find(ctx, st, name)
	if err != nil {
		return err
	}
	i := info{volume: asVolume(v), Store: url, Owner: catalog.OwnerOf(ctx, st, v)}
	if o.JSON {
		return o.PrintJSON(i)
	}
	rows := [][]string{
		{"volume", v.Label()}, {"id", i.ID}, {"store", url}, {"size", bytesCell(v.Size)}, {"state", i.State},
		{"stored", bytesCell(v.Stored) + " in " + strconv.Itoa(v.Segments) + " segments"},
		{"encrypted", yesNo(v.Encrypted)}, {"created", v.Created.UTC().Format(time.RFC3339)},
	}
	if i.Owner != nil {
		rows = append(rows, []string{"opened", i.Owner.String()})
	}
	if v.Origin != "" {
		rows = append(rows, []string{"cloned from", v.Origin})
	}
	if len(v.Snapshots) > 0 {
		rows = append(rows, []string{"snapshots", strings.Join(v.Snapshots, ", ")})
	}
	o.Table([]string{"", ""}, rows)
	return nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
