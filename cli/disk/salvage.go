package disk

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/schema"
)

func newSalvage(e *command.Env) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "salvage DISK[@TAKEOVER] NEW",
		Short: "Make a disk of the writes that a takeover has left on another node",
		Long: `When a node takes over a disk from another one that is down, the disk lacks the writes that the other had not sent to the
store. They stay in its log. When that node is up again, this command makes a new disk there, which is as the node had it:
the state that the takeover began with, and after it the writes of the log. If the log is damaged, the new disk has the
state before the damage. Neither DISK nor the log changes.

The node is the one that DISK was last taken over from (` + "`r disk show`" + `), or that of --node. If it has several logs of the
disk, DISK@TAKEOVER names one, as data@takeover-1-4711.`,
		Example:           "  r disk salvage data rescued\n  r disk salvage data rescued --node edge-2",
		Args:              command.Args(2, 2, "DISK", "NEW"),
		ValidArgsFunction: command.CompleteFirst(e, disk.DiskKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			source, takeover, named := strings.Cut(args[0], "@")
			if named && takeover == "" {
				return exit.Usagef("%q names no takeover: write DISK@takeover-EPOCH-SEQUENCE, or DISK", args[0])
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Salvage(cmd.Context(), &disk.SalvageDiskRequest{Project: e.Project(), Source: source, Takeover: takeover, Node: node, Disk: args[1]})
			if err := done(e, resp, err, "salvaged "+args[0]+" to"); err != nil {
				return err
			}
			d, err := entity.Decode[disk.Disk](&resp.Disk)
			if err == nil && d.Status.SalvagedBytes != nil {
				e.Notef("it has %s\n", salvaged(&d.Status))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "name or id of the node that has the log; default: the one that the disk was last taken over from")
	return cmd
}

// salvaged says what a disk has of the log that it was salvaged from.
func salvaged(s *disk.DiskStatus) string {
	cell := schema.CellBytes(*s.SalvagedBytes) + " of writes from the log"
	if opt.Value(s.SalvageDamaged) {
		cell += ", which is damaged after them"
	}
	return cell
}

// takenOver says when a disk was last taken over, and from which node.
func takenOver(s *disk.DiskStatus, nodes map[id.Node]string) string {
	cell := timeCell(s.TakenOverAt)
	if from := s.TakenOverFrom; from != "" {
		cell += " from " + cmp.Or(nodes[id.Node(from)], from)
	}
	return cell
}
