package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
)

// holdRoot locks the state root of a run until it is closed or the process
// ends. If another run holds the lock, it returns an error of class Conflict.
func holdRoot(root string) (*os.File, error) {
	f, err := os.OpenFile(root+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, errs.New(errs.Conflict, "another run uses %s: %w", root, err)
	}
	return f, nil
}

// sweepOthers removes by force what killed runs of other checkouts left: those
// checkouts may not exist any more.
func sweepOthers() error {
	roots, err := filepath.Glob("/var/tmp/runtime-e2e-????????")
	for _, root := range roots {
		if root == stateRoot {
			continue
		}
		held, e := holdRoot(root)
		if errs.Is(e, errs.Conflict) {
			continue
		}
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		if e = removeRoot(root); e == nil {
			e = os.Remove(root + ".lock")
		}
		err = errors.Join(err, e)
		held.Close()
	}
	return err
}

// removeRoot removes the servers of a run, and their directories.
func removeRoot(root string) error {
	states, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil {
		return err
	}
	for _, state := range states {
		in, err := instance.Find(state, config.DefaultRunDir())
		if errs.Is(err, errs.NotFound) {
			continue
		}
		if err == nil {
			err = leakcheck.Remove(in)
		}
		if err != nil {
			return fmt.Errorf("remove the server of %s: %w", state, err)
		}
	}
	return os.RemoveAll(root)
}
