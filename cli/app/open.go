package app

import (
	"context"
	"os"
	"os/exec"
	"runtime"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/errs"
)

// NewOpen makes `r app open`, which is `r open` too.
func NewOpen(e *command.Env) *cobra.Command {
	o := &appOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "open [APP]",
		Short: "Open the app in a browser",
		Long: `Prints the URL of the app. On a terminal it opens it in the browser, too: with the program in BROWSER, or that of the
desktop.`,
		Example:           "  r open\n  curl $(r open shop)",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.open(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

func (o *appOptions) open(ctx context.Context, args []string) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	d, err := load(ctx, o.Env, name)
	if err != nil {
		return err
	}
	if d.App.Status.Active() == "" {
		return errs.New(errs.FailedPrecondition, "app %s serves no version yet", name).
			WithHint("`r deploy` in its source folder puts it online; `r app status %s` shows how the last deployment ended", name)
	}
	if d.URL == "" {
		return errs.New(errs.FailedPrecondition, "app %s has no URL", name).WithHint("`r route set HOST --app %s` gives it one", name)
	}
	if o.JSON {
		return o.PrintJSON(map[string]string{"app": name, "url": d.URL})
	}
	o.Printf("%s\n", d.URL)
	if !o.Terminal {
		return nil
	}
	argv := browser()
	if argv == nil {
		return nil
	}
	if err := exec.CommandContext(ctx, argv[0], append(argv[1:], d.URL)...).Run(); err != nil {
		return errs.New(errs.Unavailable, "%s: %w", argv[0], err).WithHint("open %s yourself, or name another program in BROWSER", d.URL)
	}
	return nil
}

// browser returns the command that opens a URL; nil without a desktop.
func browser() []string {
	if b := os.Getenv("BROWSER"); b != "" {
		return []string{b}
	}
	switch runtime.GOOS {
	case "darwin":
		return []string{"open"}
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	if os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "" {
		return []string{"xdg-open"}
	}
	return nil
}
