// Package server has `r server`: start, stop and status of the server of this
// machine, and `server run`, which is the server itself.
//
//	<state>/logs/server.log   what a server in the background prints; the one before in server.log.1
//	<state>/server.yaml       the configuration that it runs with
//	<run>/<id>/server.json    its process (package proc)
package server

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/cluster"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("server", "The server of this machine", newStart(e), newStop(e), newStatus(e), newRun(e))
}

// connectTo makes the server of a configuration the one that is talked to.
func connectTo(e *command.Env, cfg *config.Config) {
	e.Options = cluster.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir}
}

func recordFile(in *instance.Instance) string { return in.Socket("server.json") }

func logFile(in *instance.Instance) string { return in.State("logs", "server.log") }

func configFile(stateDir string) string { return filepath.Join(stateDir, "server.yaml") }
