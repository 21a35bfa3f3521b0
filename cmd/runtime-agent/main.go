// Command runtime-agent is PID 1 of every sandbox. It runs the sandbox's main
// process and, for the node, further processes beside it; it reaps, forwards
// signals and keeps the main process's output and exit in files that the node
// reads without its help. components/agent is the other side, pkg/agentproto
// the language and the file formats.
//
//	runtime-agent [directory of the configuration [directory of the log]]
//	runtime-agent -hostname NAME
//	runtime-agent -listen PORT
//	runtime-agent -pod [no-network] | -pod-relay OFFSET | -pod-install DIRECTORY
//
// The second form sets the host name of a restored sandbox, and ends. The third
// is an ordinary process, which listens for a client outside the sandbox. The last
// ones are for pods of Kubernetes (pod.go).
// It runs as a user of its own with few capabilities; started as root, it becomes that user first. Every child is started from one
// thread that has an empty bounding set and no_new_privs, so that a child has
// none whatever its user is. The agent must stay small: a sandbox pays for its memory
// and its start. Hence no net, no encoding/json, no log.
//
// Goroutines: one per output stream of a process, one that reaps, one that
// forks, one that dials and reads the connection. Lock order: table.mu,
// channel.sendMu, input.mu, channel.mu, stream.mu, then the locks of agentproto.Writer.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// Exit codes of the agent itself, besides the main process's.
const exitAgentFailed = 125

func main() {
	debug.SetMemoryLimit(48 << 20)
	if len(os.Args) == 3 && os.Args[1] == agentproto.HostnameFlag {
		if err := unix.Sethostname([]byte(os.Args[2])); err != nil {
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == agentproto.ListenFlag {
		if err := listenFor(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "listen on port %s: %v\n", os.Args[2], err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], agentproto.PodFlag) {
		code, err := podMain(os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "runtime-agent:", err)
		}
		os.Exit(code)
	}
	if len(os.Args) == 1 && os.Getpid() == 1 && os.Getuid() == 0 {
		fmt.Fprintln(os.Stderr, "runtime-agent: change the user:", becomeVault())
		os.Exit(exitAgentFailed)
	}
	dir, logDir := agentproto.GuestDir, agentproto.GuestLog
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if len(os.Args) > 2 {
		logDir = os.Args[2]
	}
	code, err := run(dir, logDir, false)
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtime-agent:", err)
	}
	os.Exit(code)
}

// run is the agent. In a pod it waits at the end until the node has its log.
func run(dir, logDir string, pod bool) (int, error) {
	c, err := readConfig(dir)
	if err != nil {
		return exitAgentFailed, err
	}
	limit, err := prepareProcess(c, logDir)
	if err != nil {
		return exitAgentFailed, fmt.Errorf("prepare: %w", err)
	}
	spool, err := openSpool(logDir, c.LogBytes)
	if err != nil {
		return exitAgentFailed, err
	}
	a := newAgent(dir, c, spool, limit)
	a.run(listen())
	code := a.finish(logDir)
	if pod {
		awaitShipped(logDir)
	}
	return code, nil
}

func readConfig(dir string) (agentproto.Config, error) {
	path := filepath.Join(dir, agentproto.ConfigName)
	b, err := readFile(path, agentproto.MaxConfig)
	if err != nil {
		return agentproto.Config{}, err
	}
	c, err := agentproto.DecodeConfig(b)
	if err != nil {
		return agentproto.Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func init() {
	// More would only mean more threads, each of which the sentry must keep.
	if runtime.GOMAXPROCS(0) > 4 {
		runtime.GOMAXPROCS(4)
	}
}
