//go:build unix

package handover

import (
	"os"
	"syscall"

	"miren.dev/runtime/pkg/errs"
)

// Run replaces this process by the program at path. It returns only on error.
func Run(path string, args []string) (code int, err error) {
	if err = syscall.Exec(path, append([]string{path}, args...), os.Environ()); err != nil {
		err = errs.New(errs.FailedPrecondition, "start %s: %w", path, err).
			WithHint("`%s version --client` shows whether the program works on this machine", path)
	}
	return 0, err
}
