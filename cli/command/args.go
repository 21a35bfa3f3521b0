package command

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
	"miren.dev/runtime/pkg/text"
)

// Args checks the number of arguments; errors use names for them. A maximum
// below zero means any number.
func Args(least, most int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			missing := "an argument"
			if len(args) < len(names) {
				missing = names[len(args)]
			}
			return usage(cmd, "%s is missing", missing)
		case most == 0 && len(args) > 0:
			return usage(cmd, "it takes no arguments, %q was given", args[0])
		case most >= 0 && len(args) > most:
			return usage(cmd, "%q is one argument too many", args[most])
		}
		return nil
	}
}

func usage(cmd *cobra.Command, format string, args ...any) error {
	return exit.With(exit.Usage, errs.New(errs.InvalidArgument, "%s: %s", cmd.CommandPath(), fmt.Sprintf(format, args...)).
		WithHint("usage: %s\n`%s --help` explains it", cmd.UseLine(), cmd.CommandPath()))
}

// Group makes a command that has only subcommands.
func Group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, RunE: RunGroup}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(subs...)
	return cmd
}

// Elsewhere names the command to use in place of one that similar tools have.
var Elsewhere = map[string]string{
	"r ps":          "`r app status APP` shows the processes of an app, `r sandbox list` every sandbox",
	"r exec":        "`r app exec APP -- COMMAND`, or `r sandbox exec ID -- COMMAND`",
	"r cp":          "`r sandbox cp SOURCE DESTINATION`, of which one is ID:PATH",
	"r ssh":         "`r app exec APP -t -- sh` opens a shell in a sandbox of an app",
	"r secrets":     "`r env set --secret NAME` sets a secret variable",
	"r rollback":    "`r app rollback APP`",
	"r restart":     "`r app restart APP`",
	"r history":     "`r app history APP`",
	"r init":        "`r app init` writes .runtime/app.toml; `r server start` starts the server of this machine",
	"r create":      "`r app create APP`; `r deploy` creates the app too",
	"r launch":      "`r deploy` deploys the source of this folder; `r app init` writes its .runtime/app.toml",
	"r up":          "`r deploy` deploys the source of this folder",
	"r push":        "`r deploy` deploys the source of this folder; docs/git-push.md has git push",
	"r domains":     "`r route set HOST --app APP`",
	"r certs":       "`r certificate set NAME --cert FILE --key FILE`; with --acme-directory the server orders certificates itself",
	"r config set":  "`r env set NAME=VALUE` sets a variable of an app",
	"r config get":  "`r env list` lists the variables of an app",
	"r config:set":  "`r env set NAME=VALUE` sets a variable of an app",
	"r vars":        "`r env list` lists the variables of an app",
	"r apps":        "`r app list` lists apps, `r app create APP` creates one",
	"r destroy":     "`r app delete APP`",
	"r delete":      "`r app delete APP`",
	"r info":        "`r app show APP`",
	"r releases":    "`r app history APP`, and `r app rollback APP --to vN`",
	"r promote":     "`r app promote APP`",
	"r metrics":     "`r app metrics APP`",
	"r maintenance": "`r app maintenance on`",
	"r cron":        "`r task list` lists the tasks of an app; [tasks.NAME] of app.toml has a command and its schedule",
	"r addons":      "`r addon list` lists addons, `r addon create postgres NAME --app APP` makes one",
	"r pg":          "`r addon create postgres NAME --app APP` makes a database, `r addon console NAME` opens it",
	"r postgres":    "`r addon create postgres NAME --app APP` makes a database, `r addon console NAME` opens it",
	"r redis":       "`r addon create valkey NAME --app APP`",
	"r volumes":     "`r disk list` lists disks; [services.NAME.volumes.DISK] of app.toml mounts one",
	"r storage":     "`r disk list` lists disks; [services.NAME.volumes.DISK] of app.toml mounts one",
	"r ps:scale":    "`r scale SERVICE=N`",
	"r login":       "`r cluster add` adds a server with a certificate of `r auth generate`",
	"r app stop":    "an app runs until `r app delete APP`; `r app scale SERVICE=0` ends the processes of a service",
	"r app start":   "`r deploy` starts an app, `r app restart APP` replaces its processes",
	"r app ps":      "`r app status APP` shows the processes of an app",
	"r app ssh":     "`r app exec APP -t -- sh`",
	"r app destroy": "`r app delete APP`",
}

// RunGroup prints the help of a command that has only subcommands, or refuses
// an unknown one.
func RunGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := errs.New(errs.InvalidArgument, "there is no command %q", cmd.CommandPath()+" "+args[0])
	known := []string{}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			known = append(append(known, c.Name()), c.Aliases...)
		}
	}
	noun, _, _ := strings.Cut(args[0], ":") // config:set and the like
	if s := cmp.Or(Elsewhere[cmd.CommandPath()+" "+args[0]], Elsewhere[cmd.CommandPath()+" "+noun]); s != "" {
		return exit.With(exit.Usage, err.WithHint("%s", s))
	}
	if s := suggest.Nearest(args[0], known); s != "" {
		return exit.With(exit.Usage, err.WithHint("did you mean `%s %s`?", cmd.CommandPath(), s))
	}
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		return exit.With(exit.Usage, err.WithHint("did you mean `%s %s`?", cmd.CommandPath(), s[0]))
	}
	return exit.With(exit.Usage, err.WithHint("`%s --help` lists the commands", cmd.CommandPath()))
}

// CheckFlagGroups makes usage errors of flags that must not, or must, be given together.
func CheckFlagGroups(cmd *cobra.Command, _ []string) error {
	if err := cmd.ValidateFlagGroups(); err != nil {
		return usage(cmd, "%v", err)
	}
	return nil
}

// FlagError makes a usage error of a wrong flag, with a suggestion. For a command of one word, such as r run, that is
// also a longer command of the name that has the flag.
func FlagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	e := errs.New(errs.InvalidArgument, "%s: %w", cmd.CommandPath(), err)
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if s := suggest.Nearest(unknown.GetSpecifiedName(), known); s != "" {
			return exit.With(exit.Usage, e.WithHint("did you mean --%s?", s))
		}
		if other := sameName(cmd.Root(), cmd, unknown.GetSpecifiedName()); other != nil && cmd.Parent() == cmd.Root() {
			return exit.With(exit.Usage, e.WithHint("`%s` has --%s", other.CommandPath(), unknown.GetSpecifiedName()))
		}
	}
	return exit.With(exit.Usage, e.WithHint("`%s --help` lists the flags", cmd.CommandPath()))
}

// sameName returns another command, below one, that has the name of cmd and a flag; nil if there is none.
func sameName(below, cmd *cobra.Command, flag string) *cobra.Command {
	for _, c := range below.Commands() {
		if c != cmd && c.Name() == cmd.Name() && !c.Hidden && c.Flags().Lookup(flag) != nil {
			return c
		}
		if found := sameName(c, cmd, flag); found != nil {
			return found
		}
	}
	return nil
}

// AppName returns the name of the app of a command: the given one, else the
// name in the folder's app.toml, else the folder's name.
func AppName(given, dir string) (string, error) {
	if given != "" {
		return given, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "find the current folder: %w", err)
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return "", errs.New(errs.NotFound, "%s is not a folder", dir)
	}
	cfg, err := appconfig.Load(os.DirFS(dir))
	if err != nil {
		return "", err
	}
	if cfg.Name != "" {
		return cfg.Name, nil
	}
	if name := text.Name(filepath.Base(dir), app.MaxAppName); name != "" {
		return name, nil
	}
	return "", errs.New(errs.InvalidArgument, "no app name can be made of the folder's name %q", filepath.Base(dir)).
		WithHint("give one with --app, or name = \"...\" in app.toml")
}

// AppArg is AppName for a command that has the app as optional first argument
// and as flag --app.
func AppArg(args []string, flag string) (string, error) {
	if len(args) > 0 {
		if flag != "" && flag != args[0] {
			return "", exit.Usagef("two apps are named: %s and --app %s", args[0], flag)
		}
		return args[0], nil
	}
	return AppName(flag, ".")
}
