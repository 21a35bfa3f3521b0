package cluster

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
)

func newRemove(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Aliases: []string{"rm"},
		Short:   "Remove a cluster from the client configuration",
		Long: `Removes a cluster from the client configuration, with its certificate and key unless another cluster uses them. The
server is not touched, and the certificate stays valid until it expires.`,
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: completeFirst,
		RunE:              func(_ *cobra.Command, args []string) error { return remove(e, args[0]) },
	}
}

func remove(e *command.Env, name string) error {
	cfg, err := load()
	if err != nil {
		return err
	}
	current := cfg.CurrentCluster == name
	identity, err := cfg.Remove(name)
	if err != nil {
		return err
	}
	if err := cfg.Save(); err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(map[string]any{"removed": name, "identity_removed": identity, "was_current": current, "file": cfg.Path()})
	}
	e.Printf("%s removed %s\n", e.Paint(console.Green, "✓"), name)
	if current {
		e.Notef("it was the current cluster: commands go to the server of this machine now; `r cluster use` chooses another\n")
	}
	return nil
}
