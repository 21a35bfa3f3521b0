// Command r is the command line of runtime: a client for Linux, macOS and
// Windows. Commands that need the machine of a server, such as `r server
// start`, are handed over to the program runtime beside it.
package main

import (
	"os"

	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
)

func main() {
	os.Exit(cli.Main(cli.Args(os.Args), console.Std(), nil))
}
