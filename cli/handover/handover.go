// Package handover passes a command line to the program runtime, which has the
// commands that need the machine of a server. On Unix runtime takes the place
// of this process, elsewhere it is a child. Either way it has this process's
// arguments, standard streams and signals, and r has its exit code.
package handover

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

// Program is the name of the program without the suffix of Windows.
const Program = "runtime"

func fileName() string {
	if runtime.GOOS == "windows" {
		return Program + ".exe"
	}
	return Program
}

// Find returns the path of the program runtime: in the directory of this
// program, else the first one in PATH. NotFound if there is none.
func Find() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", errs.New(errs.Internal, "find this program: %w", err)
	}
	// An installation may link r into a directory of PATH.
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return find(self, exec.LookPath)
}

func find(self string, lookPath func(string) (string, error)) (string, error) {
	beside := filepath.Join(filepath.Dir(self), fileName())
	if usable(beside, self) {
		return beside, nil
	}
	inPath, err := lookPath(Program)
	if err == nil && usable(inPath, self) {
		return inPath, nil
	}
	if err != nil && !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, exec.ErrDot) {
		return "", errs.New(errs.Unavailable, "look for %s in PATH: %w", Program, err)
	}
	return "", errs.New(errs.NotFound, "there is no program %s at %s or in PATH", Program, beside)
}

// usable reports whether path is a program other than this one.
func usable(path, self string) bool {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || runtime.GOOS != "windows" && st.Mode()&0o111 == 0 {
		return false
	}
	own, err := os.Stat(self)
	// A link of that name to r would hand over to itself for ever.
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(st, own)
}

// Missing returns the error for a command that cannot be handed over; err comes
// from Find.
func Missing(command string, err error) error {
	hint := "install " + Program + " beside r, from the same release"
	if runtime.GOOS != "linux" {
		hint = Program + " exists for Linux only: run the command on the machine of the server"
	}
	e := errs.New(errs.FailedPrecondition, "`%s` needs the program %s: %w", command, Program, err).
		WithHint("%s", hint).With("program", Program)
	return exit.With(exit.NoRuntime, e)
}
