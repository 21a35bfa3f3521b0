package cluster

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
)

type useOptions struct {
	*command.Env
	none bool
}

func newUse(e *command.Env) *cobra.Command {
	o := &useOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "use NAME",
		Short:             "Make a cluster the current one",
		Long:              "Makes a cluster the current one: commands go to it unless a flag or the environment names another server.",
		Example:           "  r cluster use prod\n  r cluster use --none",
		Args:              command.Args(0, 1),
		ValidArgsFunction: completeFirst,
		RunE:              func(_ *cobra.Command, args []string) error { return o.run(args) },
	}
	cmd.Flags().BoolVar(&o.none, "none", false, "no current cluster: commands go to the server of this machine")
	return cmd
}

func (o *useOptions) run(args []string) error {
	if o.none == (len(args) == 1) {
		return exit.Usagef("name one cluster, or give --none")
	}
	cfg, err := load()
	if err != nil {
		return err
	}
	name := ""
	if !o.none {
		name = args[0]
		if _, err := cfg.Cluster(name); err != nil {
			return err
		}
	}
	cfg.CurrentCluster = name
	if err := cfg.Save(); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"current_cluster": name, "file": cfg.Path()})
	}
	to := "the server of this machine"
	if name != "" {
		to = name + " (" + cfg.Clusters[name].Server + ")"
	}
	o.Printf("%s commands go to %s\n", o.Paint(console.Green, "✓"), to)
	return nil
}
