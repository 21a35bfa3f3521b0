// Command containerd-shim-runsc-launch-v1 starts containerd-shim-runsc-v1, which lies beside it
// (runtime name io.containerd.runsc-launch.v1). containerd runs a shim binary twice for each sandbox: once to start the
// shim, once as the shim. This small program does the first; every other call goes to the full shim.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"miren.dev/runtime/components/shim/internal/launch"
)

const shimName = "containerd-shim-runsc-v1"

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func run() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(self), shimName)
	s := launch.Shim{Path: path, Bootstrap: os.Stdin, SocketDir: os.Getenv(launch.SocketDir)}
	flags := flag.NewFlagSet(os.Args[0], flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	flags.BoolVar(&s.Debug, "debug", false, "")
	flags.StringVar(&s.Namespace, "namespace", "", "")
	flags.StringVar(&s.ID, "id", "", "")
	flags.StringVar(&s.Containerd, "address", "", "")
	for _, name := range []string{"publish-binary", "bundle", "socket", "debug-socket"} {
		flags.String(name, "", "")
	}
	for _, name := range []string{"v", "info"} {
		flags.Bool(name, false, "")
	}
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if flags.Arg(0) != "start" {
		return os.NewSyscallError("exec "+path, syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ()))
	}
	address, err := s.Start()
	if err != nil {
		return err
	}
	answer, err := launch.Answer(address)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(answer)
	return err
}
