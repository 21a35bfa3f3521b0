package addon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// detail is an addon as `r addon show --json` prints it.
type detail struct {
	Addon       *addon.Addon             `json:"addon"`
	Attachments []*addon.AddonAttachment `json:"attachments"`
	Apps        []string                 `json:"apps"` // names of those of Attachments
	Disks       []*disk.Disk             `json:"disks"`
	Backups     []*disk.DiskSnapshot     `json:"backups"`
}

// load reads an addon with what belongs to it.
func load(ctx context.Context, e *command.Env, name string) (*detail, error) {
	a, err := command.Find[addon.Addon](ctx, e, name)
	if err != nil {
		return nil, err
	}
	x := &detail{Addon: a, Attachments: []*addon.AddonAttachment{}, Apps: []string{}, Disks: []*disk.Disk{}, Backups: []*disk.DiskSnapshot{}}
	all, _, err := command.All[addon.AddonAttachment](ctx, e, entity.Where(addon.AddonAttachmentAttrAddon, a.GetID()))
	if err != nil {
		return nil, err
	}
	x.Attachments = append(x.Attachments, all...)
	names, err := command.AppNames(ctx, e)
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		x.Apps = append(x.Apps, cmp.Or(names[t.Spec.App], string(t.Spec.App)))
	}
	disks, _, err := command.All[disk.Disk](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	for n := int64(1); n <= a.Spec.Disk; n++ {
		if i := slices.IndexFunc(disks, func(d *disk.Disk) bool { return d.Name == addon.DiskName(a.Name, n) }); i >= 0 {
			x.Disks = append(x.Disks, disks[i])
		}
	}
	for _, d := range x.Disks {
		snaps, _, err := command.All[disk.DiskSnapshot](ctx, e, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
		if err != nil {
			return nil, err
		}
		x.Backups = append(x.Backups, slices.DeleteFunc(snaps, func(s *disk.DiskSnapshot) bool { return s.Spec.Copy != "" })...)
	}
	slices.SortFunc(x.Backups, func(a, b *disk.DiskSnapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return x, nil
}

// lost says what is gone with the addon.
func (x *detail) lost() string {
	var names []string
	for _, d := range x.Disks {
		names = append(names, d.Name)
	}
	return fmt.Sprintf("its data (disk %s) and its %d backups are lost", cmp.Or(strings.Join(names, ", "), "none"), len(x.Backups))
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show an addon, the apps that use it, its disks and backups",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			x, err := load(cmd.Context(), e, args[0])
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(x)
			}
			a := x.Addon
			rows := [][]string{{"addon", a.Name}, {"id", string(a.ID)}, {"kind", kindOf(a)}, {"state", phase(e, a)}, {"endpoint", a.Status.Endpoint},
				{"memory", schema.CellBytes(a.Spec.MemoryBytes)}, {"credential", fmt.Sprint(a.Spec.Credential)}}
			if a.Status.Message != "" {
				rows = append(rows, []string{"message", a.Status.Message})
			}
			for i, t := range x.Attachments {
				rows = append(rows, []string{"app", x.Apps[i] + attachmentCell(a, t)})
			}
			for _, d := range x.Disks {
				cell := d.Name + " (" + schema.CellBytes(d.Spec.SizeBytes) + ")"
				if d.Name != a.Status.Disk && a.Status.Disk != "" {
					cell += ", as it was before a restore"
				}
				rows = append(rows, []string{"disk", cell})
				if d.Spec.SnapshotEvery != nil {
					rows = append(rows, []string{"schedule", fmt.Sprintf("a backup every %s, the newest %d are kept", *d.Spec.SnapshotEvery, d.Spec.SnapshotKeep)})
				}
			}
			for _, b := range x.Backups {
				rows = append(rows, []string{"backup", fmt.Sprintf("%s (%s, %s ago)", b.Spec.Name, b.Status.Phase, schema.CellAge(b.CreatedAt, time.Now()))})
			}
			e.Table([]string{"", ""}, rows)
			return nil
		},
	}
}

// attachmentCell says how far an attached app is.
func attachmentCell(a *addon.Addon, t *addon.AddonAttachment) string {
	cell := ""
	if t.Spec.Prefix != "" {
		cell = " as " + t.Spec.Prefix
	}
	switch {
	case t.Spec.Detach:
		return strings.TrimSuffix(cell+", is being detached: "+t.Status.Message, ": ")
	case t.Status.Running == a.Spec.Credential:
		return cell
	}
	return cell + ", " + cmp.Or(t.Status.Message, "waits for the addon")
}

func newConsole(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "console NAME [-- ARGS...]",
		Aliases: []string{"connect"},
		Short:   "Open the addon's own client: psql, valkey-cli, mariadb or s3cmd",
		Long: `Opens the client of an addon in its sandbox: psql, valkey-cli, mariadb or s3cmd. Without a terminal it reads
commands, such as a dump, from standard input. psql acts as the role of the apps; SET ROLE postgres gives it all
rights. Returns the exit code of the client.`,
		Example:           "  r addon console db\n  echo 'select count(*) from orders' | r addon console db\n  r addon console db -- -c 'select 1'\n  r addon console db < dump.sql\n  r addon console files -- ls s3://app",
		Args:              command.Args(1, -1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := command.Find[addon.Addon](cmd.Context(), e, args[0])
			if err != nil {
				return err
			}
			flags := command.ExecFlags{TTY: e.InTerminal && e.Terminal}
			req, err := flags.Request(append([]string{"addon-console"}, args[1:]...))
			if err != nil {
				return err
			}
			req.Project, req.App, req.Service = e.Project(), a.Name, string(a.Spec.Engine)
			c, err := e.Connect(cmd.Context())
			if err != nil {
				return err
			}
			return attach.Code(attach.Run(cmd.Context(), e.Console, sandbox.NewSandboxesClient(c), req))
		},
	}
}

// notAsked is the error of a question that was answered with no.
func notAsked() error { return errs.New(errs.Canceled, "nothing was changed") }
