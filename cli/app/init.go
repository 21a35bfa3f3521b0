package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/stack"
)

type initOptions struct {
	*command.Env
	dir  string
	name string
}

func newInit(e *command.Env) *cobra.Command {
	o := &initOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write .runtime/app.toml for the source of a folder",
		Long: `Detects how to build the folder and writes a .runtime/app.toml to start from. On a terminal it asks for the name, the port
and the path that is checked, and offers what it detected. A deployment does not need the file.`,
		Args: command.Args(0, 0),
		RunE: func(*cobra.Command, []string) error { return o.run() },
	}
	cmd.Flags().StringVarP(&o.dir, "dir", "d", ".", "folder of the source")
	cmd.Flags().StringVar(&o.name, "name", "", "name of the app; default: the folder's")
	return cmd
}

func (o *initOptions) run() error {
	fsys := os.DirFS(o.dir)
	cfg, err := appconfig.Load(fsys)
	if err != nil {
		return err
	}
	if cfg.File != "" {
		return errs.New(errs.AlreadyExists, "%s exists already", filepath.Join(o.dir, cfg.File)).WithHint("edit it; `r deploy --plan` shows the build")
	}
	name, err := command.AppName(o.name, o.dir)
	if err != nil {
		return err
	}
	plan, err := stack.Detect(fsys, cfg)
	if err != nil && !errors.Is(err, stack.ErrNoStack) {
		return err
	}
	if plan == nil {
		o.Notef("no stack is detected in %s: add a Dockerfile, or the source\n", o.dir)
	} else {
		o.Notef("%s\n", planText(o.Env, name, plan))
	}
	a := initial{name: name, port: detectedPort(plan), procfile: cfg.Procfile && cfg.Service(appconfig.DefaultService) == nil}
	if plan != nil {
		a.stack = plan.Stack
	}
	if o.InTerminal && !o.JSON && !o.Quiet {
		if err := o.ask(&a); err != nil {
			return err
		}
	}
	name = a.name
	text := a.text()
	if _, err := appconfig.Parse("app.toml", text); err != nil {
		return errs.Wrap(err, "name %q", name)
	}
	file := filepath.Join(o.dir, ".runtime", "app.toml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return errs.New(errs.FailedPrecondition, "%w", err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "%w", err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return errs.New(errs.Unavailable, "%w", err)
	}
	if o.JSON {
		doc := map[string]any{"file": file, "name": name}
		if plan != nil {
			doc["stack"], doc["reasons"] = plan.Stack, plan.Reasons
		}
		return o.PrintJSON(doc)
	}
	o.Printf("%s wrote %s; deploy with `r deploy`\n", o.Paint(console.Green, "✓"), file)
	return nil
}

// initial is what an app.toml to start from says.
type initial struct {
	name     string
	stack    string // empty: none was detected
	port     int64
	health   string // path that must answer; empty: an accepted connection is enough
	procfile bool   // Procfile has the services
}

func detectedPort(plan *stack.Plan) int64 {
	if plan != nil {
		for _, s := range plan.Services {
			if s.Name == appconfig.DefaultService && s.Port != nil {
				return *s.Port
			}
		}
	}
	return appconfig.DefaultPort
}

// ask asks what cannot be detected for sure. An answer is accepted if app.toml accepts it.
func (o *initOptions) ask(a *initial) error {
	// try is app.toml with one answer.
	try := func(change func(*initial)) error {
		next := *a
		change(&next)
		_, err := appconfig.Parse("app.toml", next.text())
		if err == nil {
			*a = next
		}
		return err
	}
	if _, err := o.Ask("Name of the app", a.name, func(s string) error { return try(func(a *initial) { a.name = s }) }); err != nil {
		return err
	}
	if a.procfile {
		return nil
	}
	_, err := o.Ask("Port that it listens on, 0 for none", strconv.FormatInt(a.port, 10), func(s string) error {
		port, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return errs.New(errs.InvalidArgument, "%q is no number", s)
		}
		return try(func(a *initial) { a.port = port })
	})
	if err != nil || a.port == 0 {
		return err
	}
	_, err = o.Ask("Path that answers when it is ready, empty for none", a.health, func(s string) error {
		return try(func(a *initial) { a.health = s })
	})
	return err
}

// text is the app.toml; comments show further keys.
func (a *initial) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "name = %q\n", a.name)
	b.WriteString("\n# [build]\n")
	if a.stack != "" {
		fmt.Fprintf(&b, "# stack = %q    # detected\n", a.stack)
	}
	b.WriteString("\n# [env]\n# LOG_LEVEL = \"info\"\n\n")
	if a.procfile {
		b.WriteString("# The services are in Procfile.\n")
		return b.String()
	}
	b.WriteString("[services.web]\n")
	fmt.Fprintf(&b, "port = %d\n", a.port)
	if a.health == "" {
		b.WriteString("# health_path = \"/healthz\"    # GET answers below 400 when ready; without this key an accepted connection is enough\n")
	} else {
		fmt.Fprintf(&b, "health_path = %q    # GET answers below 400 when ready\n", a.health)
	}
	b.WriteString(`# checks.live = { path = "/live" }    # hung processes are replaced; without this key one that takes connections does not hang
# replicas = 2    # or scale = { min = 0, max = 5 }, with which the number follows the load
# cpu = 0.5
# memory = "512MB"
`)
	return b.String()
}
