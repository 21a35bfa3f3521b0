//go:build !windows

package console

import "os"

// escapes reports whether a terminal obeys the sequences for colours and the
// cursor; TERM=dumb means that it does not.
func escapes(*os.File) bool { return os.Getenv("TERM") != "dumb" }
