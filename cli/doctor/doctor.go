// Package doctor has `r doctor`: it checks the machine and the server, and
// says of everything that is wrong what to do about it. It changes nothing.
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

// Level says how bad a finding is.
type Level string

// Levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, with limits
	Fail Level = "fail" // does not work
)

// Finding is the result of one check.
type Finding struct {
	Name   string `json:"name"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"` // what to do
}

// check is one check. It must end soon.
type check struct {
	name string
	run  func(ctx context.Context, m *machine) Finding
}

// machine is what the checks look at.
type machine struct {
	cfg *config.Config
	env *command.Env
	// running tells that this installation's server answers: its own ports
	// are taken by itself.
	running bool
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the machine and the server",
		Long:  "Checks the machine and the server and says what to do about what is wrong. Changes nothing. Exit code 1 if a check failed.",
		Args:  command.Args(0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), e) },
	}
	return cmd
}

func run(ctx context.Context, e *command.Env) error {
	m := &machine{env: e}
	var err error
	if m.cfg, err = loadConfig(e); err != nil {
		return err
	}
	findings := serverFindings(ctx, m)
	var all []Finding
	for _, c := range checks {
		f := c.run(ctx, m)
		f.Name = c.name
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

// loadConfig is the configuration that a server here would have, as far as
// the environment and the global flags tell.
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
	c.Printf("%d ok, %d to look at, %d failed\n", count[OK], count[Warn], count[Fail])
}

func ok(format string, args ...any) Finding {
	return Finding{Level: OK, Found: fmt.Sprintf(format, args...)}
}

func warn(advice, format string, args ...any) Finding {
	return Finding{Level: Warn, Found: fmt.Sprintf(format, args...), Advice: advice}
}

func fail(advice, format string, args ...any) Finding {
	return Finding{Level: Fail, Found: fmt.Sprintf(format, args...), Advice: advice}
}
