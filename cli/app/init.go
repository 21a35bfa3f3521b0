package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
		Long:  "Detects how to build the folder and writes a .runtime/app.toml to start from. A deployment does not need the file.",
		Args:  command.Args(0, 0),
		RunE:  func(*cobra.Command, []string) error { return o.run() },
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
	text := initText(name, plan, cfg)
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

// initText returns an app.toml with the detected settings; comments show further keys.
func initText(name string, plan *stack.Plan, cfg *appconfig.Config) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name = %q\n", name)
	port := int64(appconfig.DefaultPort)
	if plan != nil {
		for _, s := range plan.Services {
			if s.Name == appconfig.DefaultService && s.Port != nil {
				port = *s.Port
			}
		}
	}
	b.WriteString("\n# [build]\n")
	if plan != nil {
		fmt.Fprintf(&b, "# stack = %q    # detected\n", plan.Stack)
	}
	b.WriteString("\n# [env]\n# LOG_LEVEL = \"info\"\n\n")
	if cfg.Procfile && cfg.Service(appconfig.DefaultService) == nil {
		b.WriteString("# The services are in Procfile.\n")
		return b.String()
	}
	b.WriteString("[services.web]\n")
	fmt.Fprintf(&b, "port = %d\n", port)
	b.WriteString(`# health_path = "/healthz"    # GET answers below 400 when ready; without this key an accepted connection is enough
# checks.live = { path = "/live" }    # hung processes are replaced; without this key one that takes connections does not hang
# replicas = 2    # or scale = { min = 0, max = 5 }, with which the number follows the load
# cpu = 0.5
# memory = "512MB"
`)
	return b.String()
}
