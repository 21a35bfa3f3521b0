package lsvd

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/lsvd/catalog"
)

type infoOptions struct {
	base
	watch bool
}

// watchInterval is how often a watched view is printed.
const watchInterval = time.Second

func newInfo(e *command.Env) *cobra.Command {
	o := &infoOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:     "info VOLUME",
		Aliases: []string{"show"},
		Short:   "Show a volume, with live figures if it is attached here",
		Long: `Shows the state of a volume in the store. If the disk daemon of this machine has it attached, it also shows live
figures: data that the store lacks (unsent) and its age (lag), write amplification, cache hits, and the rate and latency
of operations.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "print again every second; with --json one line each")
	return cmd
}

// info is a volume as `r lsvd info --json` prints it.
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
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	var last *api.Disk
	for {
		i, err := o.read(ctx, name)
		if err != nil {
			return err
		}
		switch {
		case o.JSON && o.watch:
			err = o.PrintJSONLine(i)
		case o.JSON:
			err = o.PrintJSON(i)
		default:
			if o.watch {
				o.Clear()
			}
			o.print(i, last)
		}
		if err != nil || !o.watch {
			return err
		}
		last = i.Attached
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *infoOptions) read(ctx context.Context, name string) (*info, error) {
	st, url, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	v, err := catalog.Find(ctx, st, name)
	if err != nil {
		return nil, err
	}
	i := &info{volume: asVolume(v), Store: url, Owner: catalog.OwnerOf(ctx, st, v)}
	c, d, err := o.attached(ctx, v)
	if err != nil {
		return nil, err
	}
	if c != nil {
		c.Close()
		i.attach(d)
	}
	return i, nil
}

func (o *infoOptions) print(i *info, last *api.Disk) {
	rows := [][]string{
		{"volume", cmp.Or(i.Name, i.ID)}, {"id", i.ID}, {"store", i.Store}, {"size", bytesCell(i.SizeBytes)}, {"state", o.paintState(i.State)},
		{"stored", bytesCell(i.Stored) + " in " + strconv.Itoa(i.Segments) + " segments"},
		{"encrypted", yesNo(i.Encrypted)}, {"created", i.Created.UTC().Format(time.RFC3339)},
	}
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{name, fmt.Sprintf(format, args...)})
	}
	if i.Owner != nil {
		add("opened", "%s", i.Owner)
	}
	if i.Origin != "" {
		add("cloned from", "%s", i.Origin)
	}
	if len(i.Snapshots) > 0 {
		add("snapshots", "%s", strings.Join(i.Snapshots, ", "))
	}
	d := i.Attached
	if d == nil {
		o.pairs(rows)
		return
	}
	if d.Message != "" {
		add("failed", "%s", o.Paint(console.Red, d.Message))
		if d.Hint != "" {
			add("hint", "%s", d.Hint)
		}
	}
	if d.LostAfter != nil {
		add("lost", "writes after sequence number %d", *d.LostAfter)
	}
	for _, f := range d.Frontends {
		add(f.Kind, "%s, %d operations in flight", f.Address, f.InFlight)
	}
	f := d.Figures
	if f == nil {
		o.pairs(rows)
		return
	}
	add("unsent", "%s, lag %s", bytesCell(f.UnsentBytes), f.Lag.Round(time.Millisecond))
	add("queue", "%d operations wait for the log", f.Queue)
	add("written", "%s, amplified %.2f×; stored %s, %s of it by garbage collection, %s maps", bytesCell(f.WrittenBytes), f.WriteAmplification,
		bytesCell(f.StoredBytes), bytesCell(f.StoredGcBytes), bytesCell(f.StoredMapBytes))
	add("segments", "%d with %s, %s of it live", f.Segments, bytesCell(f.SegmentBytes), bytesCell(f.LiveBytes))
	add("log", "%s", bytesCell(f.LogBytes))
	hits := 0.0
	if n := f.CacheHits + f.CacheMisses; n > 0 {
		hits = 100 * float64(f.CacheHits) / float64(n)
	}
	add("cache", "%s, %.1f%% of %d reads hit; %d more in the disk cache", bytesCell(f.CacheBytes), hits, f.CacheHits+f.CacheMisses, f.DiskCacheHits)
	add("store", "%d operations retried", f.StoreRetries)
	o.pairs(rows)
	if len(f.Ops) == 0 {
		return
	}
	o.Printf("\n")
	headers := []string{"FRONTEND", "OPERATION", "COUNT", "BYTES", "ERRORS", "P50", "P99", "LONGEST"}
	if last != nil {
		headers = append(headers, "PER SECOND", "RATE")
	}
	var ops [][]string
	for _, x := range f.Ops {
		row := []string{x.Frontend, x.Op, itoa(x.Count), bytesCell(x.Bytes), itoa(x.Errors), latency(x.P50), latency(x.P99), latency(x.Longest)}
		if last != nil {
			was := opOf(last, x.Frontend, x.Op)
			row = append(row, itoa(max(x.Count-was.Count, 0)), bytesCell(max(x.Bytes-was.Bytes, 0))+"/s")
		}
		ops = append(ops, row)
	}
	o.Table(headers, ops)
}

func opOf(d *api.Disk, frontend, op string) api.OpFigures {
	if d.Figures != nil {
		for _, x := range d.Figures.Ops {
			if x.Frontend == frontend && x.Op == op {
				return x
			}
		}
	}
	return api.OpFigures{}
}

// latency rounds a duration to its significant digits.
func latency(d time.Duration) string {
	switch {
	case d < 100*time.Microsecond:
		return d.Round(100 * time.Nanosecond).String()
	case d < 10*time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
