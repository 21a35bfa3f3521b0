// Package dev has `r dev`: what people need who write programs against runtime.
// `r dev mock` is in package devmock.
package dev

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
)

// New makes the command.
func New(*command.Env) *cobra.Command {
	return command.Group("dev", "Develop programs against runtime")
}
