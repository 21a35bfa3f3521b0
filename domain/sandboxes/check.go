package sandboxes

import (
	"errors"
	"fmt"
	"strings"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// checkCommand returns an error for a command with which no process can be
// started.
func checkCommand(args []string) error {
	total := 0
	for i, a := range args {
		if strings.ContainsRune(a, 0) {
			return fmt.Errorf("argument %d of the command holds a NUL", i)
		}
		if total += len(a) + 1; total > sandbox.MaxCommand {
			return fmt.Errorf("the command is longer than %d bytes", sandbox.MaxCommand)
		}
	}
	return nil
}

// CheckProcess returns InvalidArgument for a command line or variables with which
// no process can be started.
func CheckProcess(command []string, env map[string]string) error {
	if err := errors.Join(checkCommand(command), checkEnv("env", env)); err != nil {
		return errs.New(errs.InvalidArgument, "%w", err)
	}
	return nil
}

// checkEnv returns an error for an environment with which no process can be
// started; field is for the message.
func checkEnv(field string, env map[string]string) error {
	if len(env) > sandbox.MaxEnv {
		return fmt.Errorf("%s: %d variables, at most %d are possible", field, len(env), sandbox.MaxEnv)
	}
	for k, v := range env {
		switch {
		case k == "" || len(k) > sandbox.MaxEnvName || strings.ContainsAny(k, "=\x00"):
			return fmt.Errorf("%s: %q cannot be the name of a variable", field, k[:min(len(k), sandbox.MaxEnvName)])
		case len(v) > sandbox.MaxEnvValue || strings.ContainsRune(v, 0):
			return fmt.Errorf("%s: the value of %s is longer than %d bytes or holds a NUL", field, k, sandbox.MaxEnvValue)
		}
	}
	return nil
}
