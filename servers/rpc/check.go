package rpcserver

import (
	"fmt"
	"strings"
)

// Bounds of what a process is started with.
const (
	maxArgs    = 1 << 20 // bytes of a command
	maxEnv     = 500
	maxEnvName = 256
	maxEnvText = 64 << 10 // bytes of a value
)

// checkCommand fails for what no process can be started with.
func checkCommand(args []string) error {
	total := 0
	for i, a := range args {
		if strings.ContainsRune(a, 0) {
			return fmt.Errorf("argument %d of the command holds a NUL", i)
		}
		if total += len(a) + 1; total > maxArgs {
			return fmt.Errorf("the command is longer than %d bytes", maxArgs)
		}
	}
	return nil
}

// checkEnv fails for what cannot be an environment.
func checkEnv(field string, env map[string]string) error {
	if len(env) > maxEnv {
		return fmt.Errorf("%s: %d variables, at most %d are possible", field, len(env), maxEnv)
	}
	for k, v := range env {
		switch {
		case k == "" || len(k) > maxEnvName || strings.ContainsAny(k, "=\x00"):
			return fmt.Errorf("%s: %q cannot be the name of a variable", field, k[:min(len(k), maxEnvName)])
		case len(v) > maxEnvText || strings.ContainsRune(v, 0):
			return fmt.Errorf("%s: the value of %s is longer than %d bytes or holds a NUL", field, k, maxEnvText)
		}
	}
	return nil
}
