package command

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// ReadSecret reads a secret from the input without the end of its line, on a
// terminal without showing it. It reads a little more than limit bytes at most.
func (e *Env) ReadSecret(what string, limit int64) (string, error) {
	if e.InTerminal {
		e.Notef("%s: ", what)
		b, err := term.ReadPassword(int(os.Stdin.Fd()))
		e.Notef("\n")
		return string(b), err
	}
	b, err := io.ReadAll(io.LimitReader(e.In, limit+2))
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), err
}
