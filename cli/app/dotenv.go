package app

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/joho/godotenv"
	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

const (
	// maxEnvInput bounds the file that is read, in bytes.
	maxEnvInput = 1 << 20
	// maxBlamed bounds the lines of a file among which the wrong one is looked for.
	maxBlamed = 1000
	// dollar stands for $ while a file is read without references; a private-use character.
	dollar = "\uf8ff"
)

var (
	envName = regexp.MustCompile(sandbox.EnvNamePattern)
	// lastQuote is an escaped quote at the end of a value, which godotenv v1.5.1 loses.
	lastQuote = regexp.MustCompile(`(?m)\\""[ \t\r]*(#.*)?$`)
	reference = regexp.MustCompile(dollar + `\{?([A-Za-z_][A-Za-z0-9_]*)`)
)

// parseDotenv reads lines of KEY=VALUE. from names them in messages. Messages have no part of the input but valid
// names: anything else may be a secret. A reference ($OTHER) to a variable that the input does not set is an error, and
// not empty: in most such values the $ is a part of them.
func parseDotenv(from string, r io.Reader) (map[string]string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxEnvInput+1))
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read %s: %w", from, err)
	}
	if len(b) > maxEnvInput {
		return nil, errs.New(errs.InvalidArgument, "%s is larger than %d bytes", from, maxEnvInput)
	}
	if lastQuote.Match(b) {
		return nil, exit.Usagef(`%s has a value that ends in an escaped quote (\""), which is not read: write it in single quotes`, from)
	}
	vars, err := godotenv.UnmarshalBytes(b)
	if err != nil { // its text quotes the input
		return nil, exit.Usagef("%s%s is not KEY=VALUE, or its quotes do not match", from, wrongLine(b))
	}
	plain, err := godotenv.Unmarshal(strings.ReplaceAll(string(b), "$", dollar))
	if err != nil {
		return nil, exit.Usagef("%s cannot be read without the references in it", from)
	}
	for i, k := range slices.Sorted(maps.Keys(vars)) {
		if !envName.MatchString(k) || len(k) > sandbox.MaxEnvName {
			return nil, exit.Usagef("%s: a name (the %s in alphabetical order) cannot be the name of a variable: letters, digits and _, not a digit first, at most %d bytes",
				from, ordinal(i+1), sandbox.MaxEnvName)
		}
		if strings.ReplaceAll(plain[k], dollar, "$") == vars[k] {
			continue
		}
		for _, ref := range reference.FindAllStringSubmatch(plain[k], -1) {
			if _, ok := vars[ref[1]]; !ok {
				return nil, exit.Usagef("%s: the value of %s refers to a variable that %s does not set: write it in single quotes to keep $ as it is", from, k, from)
			}
		}
	}
	return vars, nil
}

// wrongLine returns which line cannot be read: the one after the longest beginning that can.
func wrongLine(b []byte) string {
	lines := strings.SplitAfter(string(b), "\n")
	for n := min(len(lines), maxBlamed); n >= 0; n-- {
		if _, err := godotenv.Unmarshal(strings.Join(lines[:n], "")); err == nil {
			for n < len(lines) && (strings.TrimSpace(lines[n]) == "" || strings.HasPrefix(strings.TrimSpace(lines[n]), "#")) {
				n++
			}
			return fmt.Sprintf(": line %d", n+1)
		}
	}
	return ": a line"
}

func ordinal(n int) string {
	switch {
	case n%10 == 1 && n%100 != 11:
		return fmt.Sprint(n, "st")
	case n%10 == 2 && n%100 != 12:
		return fmt.Sprint(n, "nd")
	case n%10 == 3 && n%100 != 13:
		return fmt.Sprint(n, "rd")
	}
	return fmt.Sprint(n, "th")
}

// dotenvLine returns the line that parseDotenv reads as a variable; a comment if there is none.
func dotenvLine(k, v string) string {
	switch {
	case !strings.HasSuffix(v, `"`):
	case !strings.Contains(v, "'"):
		return k + "='" + v + "'"
	default:
		return "# " + k + " has both kinds of quotes: r app env list --json has its value"
	}
	return k + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "\n", `\n`, "\r", `\r`).Replace(v) + `"`
}

func newEnvImport(e *command.Env) *cobra.Command {
	o := &envOptions{changeOptions: changeOptions{appOptions: appOptions{Env: e}}}
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Set the variables of a dotenv file, and roll the change out",
		Long: `Sets the variables of a dotenv file (lines of KEY=VALUE), and rolls the change out if the app has an active version. The
file - is standard input. Variables that are not in the file stay.`,
		Example: "  r app env import .env.production\n  r app env import --secret .env",
		Args:    command.Args(1, 1, "FILE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.importFile(cmd.Context(), args[0]) },
	}
	o.addChange(cmd)
	cmd.Flags().BoolVar(&o.secret, "secret", false, "encrypt the values, and never show them")
	return cmd
}

func (o *envOptions) importFile(ctx context.Context, file string) error {
	from, in := "standard input", o.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return exit.Usagef("there is no file %s that can be read: %v", file, err)
		}
		defer f.Close()
		from, in = file, f
	}
	vars, err := parseDotenv(from, in)
	if err != nil {
		return err
	}
	if len(vars) == 0 {
		return exit.Usagef("%s has no variables", from)
	}
	return o.change(ctx, o.request(vars))
}

func newEnvExport(e *command.Env) *cobra.Command {
	o := &envOptions{changeOptions: changeOptions{appOptions: appOptions{Env: e}}}
	cmd := &cobra.Command{
		Use:   "export [APP]",
		Short: "Print the variables of an app as a dotenv file",
		Long: `Prints the variables that were set for an app (not those of app.toml) as lines that import reads. Secrets are not
shown: a comment names each.`,
		Example:           "  r app env export shop > .env",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.export(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

func (o *envOptions) export(ctx context.Context, args []string) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	a, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	secrets := slices.Sorted(maps.Keys(a.Spec.Secrets))
	if o.JSON {
		env := a.Spec.Env
		if env == nil {
			env = map[string]string{}
		}
		return o.PrintJSON(map[string]any{"app": a.Name, "env": env, "secrets": append([]string{}, secrets...)})
	}
	for _, k := range slices.Sorted(maps.Keys(a.Spec.Env)) {
		o.Printf("%s\n", dotenvLine(k, a.Spec.Env[k]))
	}
	for _, k := range secrets {
		o.Printf("# %s is a secret\n", k)
	}
	return nil
}

// request returns the request that sets variables.
func (o *envOptions) request(vars map[string]string) *app.SetEnvRequest {
	if o.secret {
		return &app.SetEnvRequest{SetSecret: vars}
	}
	return &app.SetEnvRequest{Set: vars}
}
