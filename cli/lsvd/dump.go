package lsvd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/node/host"
)

type dumpOptions struct {
	base
	keyFile string
	log     bool
}

func newDump(e *command.Env) *cobra.Command {
	o := &dumpOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "dump VOLUME[@SNAPSHOT]",
		Short: "Print the manifest, map and segments of a volume in the store",
		Long: `Prints the manifest, the checkpoint of the map, the table of segments and the chain after it, or with --log the files of
the local log on this machine. The volume may be open. docs/formats describes the formats.`,
		Args:              command.Args(1, 1, "VOLUME"),
		ValidArgsFunction: o.completeVolumes,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.keyFile, "key-file", "", "key of an encrypted volume")
	cmd.Flags().BoolVar(&o.log, "log", false, "print the local log instead")
	return cmd
}

// dump is a description as JSON.
type dump struct {
	volume
	Snapshot   string        `json:"snapshot,omitempty"`
	Revision   uint64        `json:"revision"`
	Durable    uint64        `json:"durable"`
	Clean      bool          `json:"clean"`
	Owner      string        `json:"owner,omitempty"`
	ChainEpoch uint64        `json:"chain_epoch"`
	ChainNext  uint64        `json:"chain_next"`
	Checkpoint string        `json:"checkpoint,omitempty"`
	MapSeq     uint64        `json:"map_sequence"`
	Maps       []string      `json:"maps"`
	Boot       string        `json:"boot_list,omitempty"`
	Leaves     int64         `json:"map_leaves"`
	Runs       int64         `json:"map_runs"`
	Mapped     int64         `json:"mapped_blocks"`
	Table      []dumpSegment `json:"segment_table"`
	Chain      []dumpSegment `json:"chain"`
	Fence      string        `json:"fence,omitempty"`
	Fences     []string      `json:"fences,omitempty"`
}

type dumpSegment struct {
	Num    uint64 `json:"num"`
	Key    string `json:"key"`
	Kind   string `json:"kind"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Size   int64  `json:"size_bytes"`
	Blocks int64  `json:"blocks"`
	Live   int64  `json:"live_blocks"`
}

func segments(in []inspect.SegmentInfo) []dumpSegment {
	out := []dumpSegment{}
	for _, s := range in {
		out = append(out, dumpSegment{Num: s.Num, Key: s.Key, Kind: s.Kind, First: s.First, Last: s.Last, Size: s.Size, Blocks: s.Blocks, Live: s.Live})
	}
	return out
}

func (o *dumpOptions) run(ctx context.Context, arg string) error {
	name, snap, err := volumeArg(arg, true)
	if err != nil {
		return err
	}
	st, _, v, err := o.find(ctx, name)
	if err != nil {
		return err
	}
	if o.log {
		return o.dumpLog(v)
	}
	key, err := host.ReadKey(o.keyFile)
	if err != nil {
		return err
	}
	d, err := inspect.Dump(ctx, st, v.ID, snap, key)
	if err != nil {
		return err
	}
	if o.JSON {
		out := dump{volume: asVolume(&catalog.Volume{VolumeInfo: d.VolumeInfo, Name: v.Name}), Snapshot: d.Snapshot, Revision: d.Revision, Durable: d.Durable, Clean: d.Clean,
			Owner: d.Owner, ChainEpoch: d.ChainEpoch, ChainNext: d.ChainNext, Checkpoint: d.Checkpoint, MapSeq: d.MapSeq, Maps: d.Maps, Boot: d.Boot, Leaves: d.Leaves, Runs: d.Runs,
			Mapped: d.Mapped, Table: segments(d.Table), Chain: segments(d.Chain), Fence: d.Fence, Fences: d.Fences}
		if out.Maps == nil {
			out.Maps = []string{}
		}
		return o.PrintJSON(out)
	}
	var rows [][]string
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{name, fmt.Sprintf(format, args...)})
	}
	add("volume", "%s", v.Label())
	add("id", "%s", d.ID)
	if d.Snapshot != "" {
		add("snapshot", "%s", d.Snapshot)
	}
	add("size", "%d", d.Size)
	add("created", "%s", d.Created.UTC().Format(time.RFC3339Nano))
	add("origin", "%s", d.Origin)
	add("encrypted", "%s", yesNo(d.Encrypted))
	add("clean", "%s", yesNo(d.Clean))
	add("revision", "%d", d.Revision)
	add("epoch", "%d", d.Epoch)
	add("owner", "%s", d.Owner)
	add("durable", "sequence number %d", d.Durable)
	add("chain", "epoch %d, next %d", d.ChainEpoch, d.ChainNext)
	add("fence", "%s", d.Fence)
	add("checkpoint", "%s, sequence number %d", d.Checkpoint, d.MapSeq)
	for _, m := range d.Maps {
		add("map", "%s", m)
	}
	if d.Boot != "" {
		add("boot list", "%s", d.Boot)
	}
	add("mapped", "%d blocks in %d runs in %d leaves", d.Mapped, d.Runs, d.Leaves)
	o.pairs(rows)
	for _, t := range []struct {
		title string
		list  []inspect.SegmentInfo
	}{{"segments", d.Table}, {"chain", d.Chain}} {
		if len(t.list) == 0 {
			continue
		}
		o.Printf("\n%s\n", t.title)
		rows = nil
		for _, s := range t.list {
			rows = append(rows, []string{fmt.Sprint(s.Num), s.Kind, fmt.Sprintf("%d-%d", s.First, s.Last), itoa(s.Size), itoa(s.Blocks), itoa(s.Live), s.Key})
		}
		o.Table([]string{"NUM", "KIND", "SEQUENCE", "BYTES", "BLOCKS", "LIVE", "KEY"}, rows)
	}
	return nil
}

func (o *dumpOptions) dumpLog(v *catalog.Volume) error {
	state, err := o.state()
	if err != nil {
		return err
	}
	files, err := state.LogFiles(v.ID)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"directory": state.LogDir(v.ID), "files": files})
	}
	o.Printf("%s\n", state.LogDir(v.ID))
	var rows [][]string
	for _, f := range files {
		rows = append(rows, []string{f.Name, itoa(f.Size), yesNo(f.Valid), fmt.Sprint(f.Epoch), fmt.Sprint(f.Generation), fmt.Sprint(f.First), f.Volume})
	}
	o.Table([]string{"FILE", "BYTES", "VALID", "EPOCH", "GENERATION", "FIRST", "VOLUME"}, rows)
	return nil
}
