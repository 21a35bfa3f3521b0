// Package addon has `r addon`: databases and stores that apps use.
package addon

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("addon", "Databases and stores that apps use",
		newCreate(e), newList(e), newShow(e), newAttach(e), newDetach(e), newRotate(e), newConsole(e),
		newBackup(e), newBackups(e), newDeleteBackup(e), newRestore(e), newDelete(e))
}

func client(ctx context.Context, e *command.Env) (addon.AddonsClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return addon.NewAddonsClient(c), nil
}

// await waits until an addon is as it is wanted and, with app, that app has its variables.
// It prints the addon, or a line for people.
func await(ctx context.Context, e *command.Env, c addon.AddonsClient, name, app, line string) error {
	resp, err := c.Wait(ctx, &addon.WaitAddonRequest{Project: e.Project(), Addon: name, App: app})
	if err != nil {
		return err
	}
	a, err := entity.Decode[addon.Addon](&resp.Addon)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(a)
	}
	e.Printf("%s %s\n", e.Paint(console.Green, "✓"), line)
	return nil
}

func newCreate(e *command.Env) *cobra.Command {
	var app, prefix, version string
	var size, memory command.Bytes
	cmd := &cobra.Command{
		Use:   "create KIND NAME",
		Short: "Make an addon: postgres, valkey, mysql or s3",
		Long: `Makes a database or store in a sandbox of its own, with a disk, and returns when it can be used. With --app it gives that app
its variables (DATABASE_URL, REDIS_URL, or BUCKET_NAME and those of AWS), and rolls them out. The server goes on when the command is ended.`,
		Example:           "  r addon create postgres db --app shop\n  r addon create valkey cache --size 1G --memory 256M\n  r addon create s3 files --app shop --size 100G\n  r addon create postgres reports --app shop --as REPORTS",
		Args:              command.Args(2, 2, "KIND", "NAME"),
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"postgres", "valkey", "mysql", "s3"}, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			engine, err := addon.ParseEngine(args[0])
			if err != nil {
				return err
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			req := &addon.CreateAddonRequest{Project: e.Project(), Addon: args[1], Engine: engine, Version: version}
			if size != 0 {
				n := int64(size)
				req.SizeBytes = &n
			}
			if memory != 0 {
				n := int64(memory)
				req.MemoryBytes = &n
			}
			if _, err := c.Create(cmd.Context(), req); err != nil {
				return err
			}
			line := "created " + args[1]
			if app != "" {
				if _, err := c.Attach(cmd.Context(), &addon.AttachAddonRequest{Project: e.Project(), Addon: args[1], App: app, Prefix: prefix}); err != nil {
					return err
				}
				line += ", which app " + app + " uses"
			}
			return await(cmd.Context(), e, c, args[1], app, line)
		},
	}
	cmd.Flags().StringVarP(&app, "app", "a", "", "app that gets its variables")
	cmd.Flags().StringVar(&prefix, "as", "", "prefix of the variables: REPORTS makes REPORTS_DATABASE_URL")
	cmd.Flags().StringVar(&version, "version", "", "version, such as 15; default: the one of the server's distribution")
	cmd.Flags().VarP(&size, "size", "s", "size of its disk; default 10G")
	cmd.Flags().VarP(&memory, "memory", "m", "memory of its sandbox; default 512M")
	return cmd
}

func newAttach(e *command.Env) *cobra.Command {
	var app, prefix string
	cmd := &cobra.Command{
		Use:               "attach NAME",
		Short:             "Give an app the variables of an addon",
		Long:              "Gives an app the variables of an addon as secrets, rolls them out, and returns when each sandbox of the app has them.",
		Example:           "  r addon attach db --app worker\n  r addon attach reports --app shop --as REPORTS",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := command.AppArg(nil, app)
			if err != nil {
				return err
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if _, err := c.Attach(cmd.Context(), &addon.AttachAddonRequest{Project: e.Project(), Addon: args[0], App: name, Prefix: prefix}); err != nil {
				return err
			}
			return await(cmd.Context(), e, c, args[0], name, "app "+name+" has the variables of "+args[0])
		},
	}
	appFlag(cmd, &app)
	cmd.Flags().StringVar(&prefix, "as", "", "prefix of the variables: REPORTS makes REPORTS_DATABASE_URL")
	return cmd
}

// appFlag adds the flag that names the app.
func appFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVarP(to, "app", "a", "", "app; default: the current folder's")
}

func newDetach(e *command.Env) *cobra.Command {
	var app string
	cmd := &cobra.Command{
		Use:               "detach NAME",
		Short:             "Take the variables of an addon from an app",
		Long:              "Takes the variables of an addon from an app, rolls that out, and returns when the version that serves does not have them. The addon and its data stay. Credentials that the app had work until they are rotated.",
		Example:           "  r addon detach db --app worker",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := command.AppArg(nil, app)
			if err != nil {
				return err
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if err := c.Detach(cmd.Context(), &addon.AttachAddonRequest{Project: e.Project(), Addon: args[0], App: name}); err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(map[string]string{"detached": args[0], "app": name})
			}
			e.Printf("%s app %s does not have the variables of %s any more\n", e.Paint(console.Green, "✓"), name, args[0])
			return nil
		},
	}
	appFlag(cmd, &app)
	return cmd
}

func newRotate(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate NAME",
		Short: "Replace the credentials of an addon",
		Long: `Makes new credentials, rolls them out to the apps that use the addon, and returns when each of their sandboxes has them and the
addon refuses the old ones. Until then both work, so no request fails.`,
		Example:           "  r addon rotate db",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if _, err := c.Rotate(cmd.Context(), &addon.AddonRequest{Project: e.Project(), Addon: args[0]}); err != nil {
				return err
			}
			return await(cmd.Context(), e, c, args[0], "", args[0]+" has new credentials and refuses the old ones")
		},
	}
}

func newDelete(e *command.Env) *cobra.Command {
	var yes, force bool
	cmd := &cobra.Command{
		Use:               "delete NAME",
		Aliases:           []string{"rm"},
		Short:             "Delete an addon with its data and backups",
		Long:              "Deletes an addon permanently, with all of its disks and backups. It refuses while apps use the addon. Copies in other stores stay.",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, addon.AddonKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			x, err := load(cmd.Context(), e, args[0])
			if err != nil {
				return err
			}
			if !yes {
				ok, err := e.Confirm("delete addon " + args[0] + " permanently: " + x.lost())
				if err != nil {
					return err
				}
				if !ok {
					return errs.New(errs.Canceled, "nothing was deleted")
				}
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			if err := c.Delete(cmd.Context(), &addon.DeleteAddonRequest{Project: e.Project(), Addon: args[0], Force: &force}); err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(map[string]string{"deleted": args[0]})
			}
			e.Printf("%s deleted the addon %s: %s\n", e.Paint(console.Green, "✓"), args[0], x.lost())
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "delete without asking")
	cmd.Flags().BoolVar(&force, "force", false, "also while apps use it; they lose its variables")
	return cmd
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*addon.Addon, error) {
		all, _, err := command.All[addon.Addon](ctx, e, entity.Query{})
		slices.SortFunc(all, func(a, b *addon.Addon) int { return cmp.Compare(a.Name, b.Name) })
		return all, err
	}
	return command.List(e, "List the addons", []string{addon.KindAddon, addon.KindAddonAttachment}, load, func(ctx context.Context, all []*addon.Addon) error {
		if len(all) == 0 && e.Terminal {
			e.Notef("there are no addons: r addon create postgres db makes one\n")
			return nil
		}
		users, err := users(ctx, e)
		if err != nil {
			return err
		}
		var rows [][]string
		for _, a := range all {
			rows = append(rows, []string{a.Name, kindOf(a), phase(e, a), strings.Join(users[a.GetID()], ", "), a.Status.Endpoint, a.Status.Message, schema.CellAge(a.CreatedAt, time.Now())})
		}
		e.Table([]string{"ADDON", "KIND", "STATE", "APPS", "ENDPOINT", "MESSAGE", "AGE"}, rows)
		return nil
	})
}

// users returns the names of the apps that use addons, by addon.
func users(ctx context.Context, e *command.Env) (map[id.Addon][]string, error) {
	names, err := command.AppNames(ctx, e)
	if err != nil {
		return nil, err
	}
	all, _, err := command.All[addon.AddonAttachment](ctx, e, entity.Query{})
	out := map[id.Addon][]string{}
	for _, t := range all {
		out[t.Spec.Addon] = append(out[t.Spec.Addon], names[t.Spec.App])
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out, err
}

func kindOf(a *addon.Addon) string {
	return strings.TrimSpace(string(a.Spec.Engine) + " " + cmp.Or(a.Status.Version, a.Spec.Version))
}

func phase(e *command.Env, a *addon.Addon) string {
	switch a.Status.Phase {
	case addon.AddonPhaseReady:
		return e.Paint(console.Green, "ready")
	case addon.AddonPhaseFailed:
		return e.Paint(console.Red, "failed")
	}
	return e.Paint(console.Yellow, string(a.Status.Phase))
}
