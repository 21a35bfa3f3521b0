//go:build !unix

package handover

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"

	"miren.dev/runtime/pkg/errs"
)

// Run runs the program at path and returns its exit code. The console sends
// Ctrl-C to both processes: this one ignores it and waits for the other.
func Run(path string, args []string) (code int, err error) {
	cmd := exec.Command(path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signal.Ignore(os.Interrupt)
	err = cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return 0, errs.New(errs.FailedPrecondition, "start %s: %w", path, err).
			WithHint("`%s version --client` shows whether the program works on this machine", path)
	}
	return cmd.ProcessState.ExitCode(), nil
}
