// Package doctor has `r doctor`: it checks the server, and the machine where
// that is possible, and says what to do about each failure. With --fix it mends
// what it can mend without a loss.
//
// The checks of a machine are in package hostcheck, which only the program
// runtime links; a client without it reports that they were not run.
package doctor

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

// Level is the severity of a finding.
type Level string

// Levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, with restrictions
	Fail Level = "fail" // does not work
)

// Finding is the result of one check.
type Finding struct {
	Name   string `json:"name"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"`
	Fixed  string `json:"fixed,omitempty"` // what was wrong before --fix mended it
	// Fixable says that --fix can mend it.
	Fixable bool `json:"fixable,omitempty"`
}

// Good returns a finding of level OK.
func Good(format string, args ...any) Finding {
	return Finding{Level: OK, Found: fmt.Sprintf(format, args...)}
}

// Warning returns a finding of level Warn.
func Warning(advice, format string, args ...any) Finding {
	return Finding{Level: Warn, Found: fmt.Sprintf(format, args...), Advice: advice}
}

// Failure returns a finding of level Fail.
func Failure(advice, format string, args ...any) Finding {
	return Finding{Level: Fail, Found: fmt.Sprintf(format, args...), Advice: advice}
}

// Host is the machine under check.
type Host struct {
	Config *config.Config
	// Running reports whether the server of Config answers: it uses its own
	// ports.
	Running bool
}

// Check is one check of a machine. It takes at most seconds.
type Check struct {
	Name string
	Run  func(ctx context.Context, h *Host) Finding
	// Fix, if set, mends what Run has found, without a loss. Run is repeated then.
	Fix func(ctx context.Context, h *Host) error
}

// New makes the command of a client, which checks only the server.
func New(e *command.Env) *cobra.Command { return newCommand(e, nil) }

// WithChecks makes the command for a machine, with these checks.
func WithChecks(checks []Check) func(*command.Env) *cobra.Command {
	return func(e *command.Env) *cobra.Command { return newCommand(e, checks) }
}

func newCommand(e *command.Env, checks []Check) *cobra.Command {
	fix := false
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the machine and the server",
		Long: `Checks the machine and the server, and says what to do about each failure. Exit code 1 if a check failed.
It changes nothing without --fix, which mends what can be mended without a loss: what processes of this installation
that have ended left on the machine (mounts, network namespaces, interfaces, firewall tables, control groups). A
running server mends its firewall and removes sandboxes without an entity by itself. Without the program runtime beside
r, it checks only the server.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), e, checks, fix) },
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "mend what can be mended without a loss (root)")
	return cmd
}

func run(ctx context.Context, e *command.Env, checks []Check, fix bool) error {
	all, err := findings(ctx, e, checks, fix)
	if err != nil {
		return err
	}
	failed := 0
	for _, f := range all {
		if f.Level == Fail {
			failed++
		}
	}
	if e.JSON {
		err = e.PrintJSON(map[string]any{"ok": failed == 0, "checks": all})
	} else {
		print(e.Console, all)
	}
	if err == nil && failed > 0 {
		return exit.With(exit.Failed, nil)
	}
	return err
}

// Findings runs checks of the machine, and those of the command's server.
func Findings(ctx context.Context, e *command.Env, checks []Check) ([]Finding, error) {
	return findings(ctx, e, checks, false)
}

func findings(ctx context.Context, e *command.Env, checks []Check, fix bool) ([]Finding, error) {
	cfg, err := loadConfig(e)
	if err != nil {
		return nil, err
	}
	h := &Host{Config: cfg}
	// Ask the server first, since a port that it uses is no failure, and print it last.
	ofServer := serverFindings(ctx, e, h, checks != nil)
	var all []Finding
	if checks == nil {
		f := Warning("run `r doctor` on the machine of the server", "not checked: the program runtime is not installed here")
		f.Name = "machine"
		all = append(all, f)
	}
	for _, c := range checks {
		all = append(all, c.finding(ctx, h, fix))
	}
	return append(all, ofServer...), nil
}

// finding runs the check, and with fix mends what it finds.
func (c *Check) finding(ctx context.Context, h *Host, fix bool) Finding {
	f := c.Run(ctx, h)
	if f.Fixable = f.Level != OK && c.Fix != nil; f.Fixable && fix {
		before := f.Found
		if err := c.Fix(ctx, h); err != nil {
			f = Failure(errs.HintOf(err), "%s; it could not be mended: %v", before, err)
		} else if f = c.Run(ctx, h); f.Level == OK {
			f.Fixed = before
		}
	}
	f.Name = c.Name
	return f
}

// loadConfig returns the configuration that a server here would have, as far as
// the environment and the global flags determine it.
func loadConfig(e *command.Env) (*config.Config, error) {
	cfg, err := config.Load(os.Getenv("RUNTIME_CONFIG"), os.Environ(), nil)
	if err != nil {
		return nil, err
	}
	if e.Options.StateDir != "" {
		cfg.StateDir = e.Options.StateDir
	}
	if e.Options.RunDir != "" {
		cfg.RunDir = e.Options.RunDir
	}
	return cfg, nil
}

func print(c *console.Console, all []Finding) {
	marks := map[Level]string{OK: c.Paint(console.Green, "ok  "), Warn: c.Paint(console.Yellow, "warn"), Fail: c.Paint(console.Red, "FAIL")}
	count := map[Level]int{}
	for _, f := range all {
		count[f.Level]++
		c.Printf("%s  %-12s %s\n", marks[f.Level], f.Name, f.Found)
		if f.Fixed != "" {
			c.Printf("      %-12s %s\n", "", "mended: "+f.Fixed)
		}
		if f.Fixable {
			c.Printf("      %-12s %s\n", "", c.Paint(console.Yellow, "→ `r doctor --fix` mends it"))
		}
		if f.Advice != "" {
			c.Printf("      %-12s %s\n", "", c.Paint(console.Yellow, "→ "+f.Advice))
		}
	}
	c.Printf("%d ok, %d warnings, %d failed\n", count[OK], count[Warn], count[Fail])
}
