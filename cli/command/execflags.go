package command

import (
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/exit"
)

// ProcessFlags are the flags for the surroundings of a process.
type ProcessFlags struct {
	Env     []string
	Workdir string
	User    string
}

// AddFlags defines the flags.
func (f *ProcessFlags) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.Env, "env", "e", nil, "environment variable, KEY=VALUE, or KEY for its value here")
	cmd.Flags().StringVarP(&f.Workdir, "workdir", "w", "", "working directory")
	cmd.Flags().StringVarP(&f.User, "user", "u", "", "user, by name or uid[:gid]")
}

// ExecFlags are the flags of commands that run a process in a sandbox.
type ExecFlags struct {
	ProcessFlags
	TTY     bool
	NoStdin bool
}

// AddFlags defines the flags.
func (f *ExecFlags) AddFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.TTY, "tty", "t", false, "run it on a terminal")
	cmd.Flags().BoolVar(&f.NoStdin, "no-stdin", false, "do not send standard input")
	f.ProcessFlags.AddFlags(cmd)
}

// Request describes the process.
func (f *ExecFlags) Request(argv []string) (*sandbox.ExecRequest, error) {
	env, err := f.Environment()
	if err != nil {
		return nil, err
	}
	stdin := !f.NoStdin
	req := &sandbox.ExecRequest{Command: argv, Env: env, Workdir: f.Workdir, User: f.User, TTY: &f.TTY, Stdin: &stdin}
	return req, nil
}

// Environment reads --env. With a terminal it adds TERM.
func (f *ExecFlags) Environment() (map[string]string, error) {
	env, err := ParseEnv(f.Env)
	if err != nil || !f.TTY || env["TERM"] != "" {
		return env, err
	}
	if term := os.Getenv("TERM"); term != "" {
		if env == nil {
			env = map[string]string{}
		}
		env["TERM"] = term
	}
	return env, nil
}

// ParseEnv reads KEY=VALUE, and KEY for the value in this process's environment.
func ParseEnv(pairs []string) (map[string]string, error) { return parseEnv(pairs, false) }

// ParseSecrets is ParseEnv for secrets: its errors have no part of what was given, which may be a value without its name.
func ParseSecrets(pairs []string) (map[string]string, error) { return parseEnv(pairs, true) }

var envName = regexp.MustCompile(sandbox.EnvNamePattern)

func parseEnv(pairs []string, secret bool) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	env := map[string]string{}
	for i, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				if secret {
					return nil, exit.Usagef("secret %d of the command is not set in this environment: give it as KEY=VALUE", i+1)
				}
				return nil, exit.Usagef("%s is not set in this environment: give it as %s=VALUE", k, k)
			}
		}
		if secret && !envName.MatchString(k) {
			return nil, exit.Usagef("secret %d of the command has no valid name: give it as KEY=VALUE, with letters, digits and _, not a digit first", i+1)
		}
		if k == "" {
			return nil, exit.Usagef("%q has no name: give it as KEY=VALUE", p)
		}
		env[k] = v
	}
	return env, nil
}
