// Package doctor has `r doctor`: it checks the server, and the machine where
// that is possible, and says what to do about each failure. It changes nothing.
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
	Advice string `json:"advice,omitempty"` // advice
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
}

// New makes the command of a client, which checks only the server.
func New(e *command.Env) *cobra.Command { return newCommand(e, nil) }

// WithChecks makes the command for a machine, with these checks.
func WithChecks(checks []Check) func(*command.Env) *cobra.Command {
	return func(e *command.Env) *cobra.Command { return newCommand(e, checks) }
}

func newCommand(e *command.Env, checks []Check) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check the machine and the server",
		Long: `Checks the machine and the server, and says what to do about each failure. It changes nothing. Exit code 1 if a check
failed. Without the program runtime beside r, it checks only the server.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), e, checks) },
	}
}

func run(ctx context.Context, e *command.Env, checks []Check) error {
	cfg, err := loadConfig(e)
	if err != nil {
		return err
	}
	h := &Host{Config: cfg}
	// Ask the server first, since a port that it uses is no failure, and print it last.
	findings := serverFindings(ctx, e, h, checks != nil)
	var all []Finding
	if checks == nil {
		f := Warning("run `r doctor` on the machine of the server", "not checked: the program runtime is not installed here")
		f.Name = "machine"
		all = append(all, f)
	}
	for _, c := range checks {
		f := c.Run(ctx, h)
		f.Name = c.Name
		all = append(all, f)
	}
	all = append(all, findings...)
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
		if f.Advice != "" {
			c.Printf("      %-12s %s\n", "", c.Paint(console.Yellow, "→ "+f.Advice))
		}
	}
	c.Printf("%d ok, %d warnings, %d failed\n", count[OK], count[Warn], count[Fail])
}
