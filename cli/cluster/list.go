package cluster

import (
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
)

func newList(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the clusters",
		Long:    "Lists the clusters of the client configuration; * marks the current one. It does not connect to them.",
		Args:    command.Args(0, 0),
		RunE:    func(*cobra.Command, []string) error { return list(e) },
	}
}

func list(e *command.Env) error {
	cfg, err := load()
	if err != nil {
		return err
	}
	all := []info{}
	for _, name := range cfg.Names() {
		all = append(all, describe(cfg, name))
	}
	if e.JSON {
		return e.PrintJSON(all)
	}
	if len(all) == 0 {
		e.Notef("there are no clusters; add one with `r cluster add`\n")
		return nil
	}
	now := time.Now()
	var rows [][]string
	for _, c := range all {
		current, until := "", ""
		if c.Current {
			current = e.Paint(console.Green, "*")
		}
		if c.Expires != nil {
			until = expiry(e, *c.Expires, now)
		}
		rows = append(rows, []string{current, c.Name, c.Server, c.Identity, until, c.Project, e.Paint(console.Red, c.Complaint)})
	}
	e.Table([]string{"", "CLUSTER", "SERVER", "IDENTITY", "VALID UNTIL", "PROJECT", "ERROR"}, rows)
	return nil
}

// soon is when the expiry of a certificate is marked.
const soon = 14 * 24 * time.Hour

func expiry(e *command.Env, at, now time.Time) string {
	day := at.Local().Format(time.DateOnly)
	switch {
	case at.Before(now):
		return e.Paint(console.Red, day+" (expired)")
	case at.Before(now.Add(soon)):
		return e.Paint(console.Yellow, day)
	}
	return day
}
