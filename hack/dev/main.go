// Command dev runs a server from this checkout for developing: it rebuilds the
// binaries when a source file changes and restarts the server when they differ.
// Sandboxes, containerd, PostgreSQL, BuildKit and the ingress keep running, so
// apps answer throughout. When a build fails, the old server stays.
//
// hack/dev.sh builds and runs it; CONTRIBUTING.md describes how to work with it.
//
//	<checkout>/bin/dev/     the binaries that the server runs
//	<state>/                the server's state directory
//	<state>/dev.lock        locked by the one dev of the state directory
//	<state>/dev-port        the ingress's port, the same in the next run
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	// A terminal or pipe that is gone must not end dev before it has stopped its processes.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	go func() {
		<-signals
		cancel()
		for s := range signals {
			if s == os.Interrupt { // the second Ctrl-C
				os.Exit(130)
			}
		}
	}()
	err := run(ctx, os.Args[1:], os.Stdout)
	var exit *exitError
	if errors.As(err, &exit) {
		os.Exit(exit.code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

const usage = `Usage: hack/dev.sh [command] [flags]

  run     run a server, rebuild and restart it when the source changes, stop everything at the end (the default)
  shell   a shell in which r talks to that server; flags are the shell's: hack/dev.sh shell -c 'r app list'
  stop    stop everything, also what a killed run left; with --remove delete the state directory too
  tmux    run, the logs and a shell in one tmux session

Flags of run:
`

// run executes one command line.
func run(ctx context.Context, args []string, out io.Writer) error {
	command := "run"
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	e, err := newEnv(out)
	if err != nil {
		return err
	}
	switch command {
	case "run":
		return runServer(ctx, e, args)
	case "shell":
		return e.shell(args)
	case "state": // for dev-tmux.sh
		_, err := fmt.Fprintln(out, e.state)
		return err
	case "stop":
		return stopAll(ctx, e, args)
	}
	return fmt.Errorf("unknown command %q: run, shell, stop or tmux (hack/dev.sh --help)", command)
}

func runServer(ctx context.Context, e *env, args []string) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	debug := flags.Bool("debug", false, "run bin/dev/runtime-debug: unoptimised, with the race detector, for delve")
	quiet := flags.Bool("quiet", false, "do not print the server's log")
	if err := flags.Parse(args); err != nil {
		return flagError(err)
	}
	if os.Geteuid() != 0 {
		return errors.New("the server needs root: run make dev as root")
	}
	unlock, err := e.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if e.port, err = choosePort(e); err != nil {
		return err
	}
	s := &supervisor{env: e, debug: *debug, serverFlags: flags.Args()}
	if !*quiet {
		defer follow(e.serverLog(), e.out)()
	}
	return s.run(ctx)
}

func stopAll(ctx context.Context, e *env, args []string) error {
	flags := flag.NewFlagSet("stop", flag.ContinueOnError)
	remove := flags.Bool("remove", false, "delete the state directory and the binaries too")
	if err := flags.Parse(args); err != nil {
		return flagError(err)
	}
	if os.Geteuid() != 0 {
		return errors.New("to stop the server needs root: run make dev-stop as root")
	}
	if err := e.endRun(ctx); err != nil {
		return err
	}
	if err := e.stop(ctx); err != nil {
		return err
	}
	if *remove {
		if err := errors.Join(os.RemoveAll(e.state), os.RemoveAll(e.bin)); err != nil {
			return err
		}
		e.say("removed %s", e.state)
	}
	return nil
}

// exitError ends dev with a code; why has been printed.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// flagError returns nil for --help, whose text the flag package has printed.
func flagError(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return &exitError{2}
}

// lock makes this the only dev of the state directory until unlock.
func (e *env) lock() (unlock func(), err error) {
	if err := os.MkdirAll(e.state, 0o711); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(e.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("make dev runs already for this checkout (pid %d): use make dev-shell, or end it with make dev-stop", e.holder())
		}
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := fmt.Fprintf(f, "%d\n", os.Getpid()); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
