package sandboxes

import (
	"errors"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// CheckProcess returns InvalidArgument for a command line or variables with which
// no process can be started.
func CheckProcess(command []string, env map[string]string) error {
	if err := errors.Join(sandbox.CheckCommand(command), sandbox.CheckEnv("env", env)); err != nil {
		return errs.New(errs.InvalidArgument, "%w", err)
	}
	return nil
}
