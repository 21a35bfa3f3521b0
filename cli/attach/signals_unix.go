//go:build unix

package attach

import (
	"os"
	"os/signal"
	"syscall"
)

// forwarded are the signals that go to the remote process, with their numbers
// on Linux; SIGUSR1 and SIGUSR2 have other numbers on other systems.
var forwarded = map[os.Signal]int64{
	syscall.SIGHUP: 1, syscall.SIGINT: 2, syscall.SIGQUIT: 3, syscall.SIGUSR1: 10, syscall.SIGUSR2: 12, syscall.SIGTERM: 15,
}

// resizes returns a channel that receives when the size of the terminal has
// changed, until stop is called.
func resizes(func() (cols, rows int64)) (changed <-chan os.Signal, stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH)
	return ch, func() { signal.Stop(ch) }
}
