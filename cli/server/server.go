// Package server has `r server` as far as a client can run it: the status of a
// server, near or remote. Start and stop are in package serverctl.
package server

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("server", "Start, stop and check a server", newStatus(e))
}
