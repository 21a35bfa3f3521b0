// Command runtime is the server, the ingress and the command line of runtime;
// it is also installed as r.
package main

import (
	"os"

	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], console.Std()))
}
