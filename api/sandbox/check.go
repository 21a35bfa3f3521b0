package sandbox

import (
	"fmt"
	"strings"
)

// CheckCommand returns an error for a command with which no process can be
// started.
func CheckCommand(args []string) error {
	total := 0
	for i, a := range args {
		if strings.ContainsRune(a, 0) {
			return fmt.Errorf("argument %d of the command holds a NUL", i)
		}
		if total += len(a) + 1; total > MaxCommand {
			return fmt.Errorf("the command is longer than %d bytes", MaxCommand)
		}
	}
	return nil
}

// CheckEnv returns an error for an environment with which no process can be
// started; field is for the message.
func CheckEnv(field string, env map[string]string) error {
	if len(env) > MaxEnv {
		return fmt.Errorf("%s: %d variables, at most %d are possible", field, len(env), MaxEnv)
	}
	for k, v := range env {
		switch {
		case k == "" || len(k) > MaxEnvName || strings.ContainsAny(k, "=\x00"):
			return fmt.Errorf("%s: %q cannot be the name of a variable", field, k[:min(len(k), MaxEnvName)])
		case len(v) > MaxEnvValue || strings.ContainsRune(v, 0):
			return fmt.Errorf("%s: the value of %s is longer than %d bytes or holds a NUL", field, k, MaxEnvValue)
		}
	}
	return nil
}
