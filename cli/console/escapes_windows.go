package console

import (
	"os"

	"golang.org/x/sys/windows"
)

// escapes makes the console of Windows obey the sequences for colours and the
// cursor, and reports whether it does.
func escapes(f *os.File) bool {
	var mode uint32
	h := windows.Handle(f.Fd())
	if windows.GetConsoleMode(h, &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
