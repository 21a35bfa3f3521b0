// Command runtime is the server, the ingress, the disk daemon and the whole
// command line of runtime on a Linux machine. The portable client is cmd/r.
package main

import (
	"os"

	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/machine"
)

func main() {
	os.Exit(cli.Main(cli.Args(os.Args), console.Std(), machine.Commands))
}
