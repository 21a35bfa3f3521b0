// Package debug has `r debug`: the internal state of a server.
package debug

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("debug", "Show the internal state of a server", newControllers(e))
}

func newControllers(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "controllers",
		Short: "Show the controllers: their queues, last errors, and what they read and write",
		Long: `Shows each controller with the keys that wait for a worker (ready), wait for a time (delayed), are worked on
(running) and failed the last time (retrying), and the reconciliations since the server started. Then what each reads
and writes: a field has one owner; what another writes of it is listed with its condition. "api" stands for the
operations that users call.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return controllers(cmd.Context(), e) },
	}
}

func controllers(ctx context.Context, e *command.Env) error {
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := server.NewDebugClient(c).Controllers(ctx)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(resp)
	}
	draw(e, resp, time.Now())
	return nil
}

func draw(e *command.Env, resp *server.ControllersResponse, now time.Time) {
	var rows [][]string
	for i := range resp.Controllers {
		if c := &resp.Controllers[i]; c.Controller {
			rows = append(rows, row(e, c, now))
		}
	}
	e.Table([]string{"CONTROLLER", "READY", "DELAYED", "RUNNING", "RETRYING", "RUNS", "LAST ERROR"}, rows)
	for i := range resp.Controllers {
		e.Printf("\n")
		declared(e, &resp.Controllers[i])
	}
	e.Printf("\n")
	store(e, resp, now)
}

func row(e *command.Env, c *server.ControllerStatus, now time.Time) []string {
	number := func(n int64) string { return fmt.Sprint(n) }
	retrying := number(c.Retrying)
	if c.Retrying > 0 {
		retrying = e.Paint(console.Yellow, retrying)
	}
	last := ""
	if f := c.Failure; f != nil {
		last = fmt.Sprintf("%s ago, %s: %s", schema.CellAge(f.At, now), f.Key, f.Message)
	}
	return []string{c.Name, number(c.Ready), number(c.Delayed), fmt.Sprintf("%d/%d", c.Running, c.Workers), retrying, number(c.Runs), last}
}

// declared prints the declarations of a writer.
func declared(e *command.Env, c *server.ControllerStatus) {
	e.Printf("%s\n", e.Paint(console.Bold, c.Name))
	line := func(what string, list []string) {
		if len(list) > 0 {
			e.Printf("  %-11s %s\n", what, strings.Join(list, ", "))
		}
	}
	if c.Kind != "" {
		line("reconciles", []string{c.Kind})
	}
	line("woken by", c.Watches)
	line("reads", c.Reads)
	line("creates", c.Creates)
	line("deletes", c.Deletes)
	line("owns", c.Owns)
	for _, s := range c.Shares {
		line("also writes", []string{fmt.Sprintf("%s (of %s) %s", s.Field, s.Owner, s.Condition)})
	}
}

// store prints how changes reach the controllers.
func store(e *command.Env, resp *server.ControllersResponse, now time.Time) {
	var kinds []string
	for _, k := range resp.Informers {
		kinds = append(kinds, fmt.Sprintf("%s %d", k.Kind, k.Entities))
	}
	seen := "never"
	if resp.LastSeen != nil {
		seen = schema.CellAge(*resp.LastSeen, now) + " ago"
	}
	e.Printf("at revision %d of the store, last answer %s; %d interruptions; entities in memory: %s\n",
		resp.Revision, seen, resp.Interruptions, strings.Join(kinds, ", "))
	switch {
	case resp.Error != "":
		e.Printf("%s cannot follow the store: %s\n", e.Paint(console.Red, "✗"), resp.Error)
	case !resp.Synced:
		e.Printf("%s not every kind has been listed yet\n", e.Paint(console.Yellow, "!"))
	}
}
