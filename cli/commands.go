package cli

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/app"
	"miren.dev/runtime/cli/auth"
	"miren.dev/runtime/cli/build"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/completion"
	"miren.dev/runtime/cli/config"
	"miren.dev/runtime/cli/debug"
	"miren.dev/runtime/cli/doctor"
	"miren.dev/runtime/cli/entity"
	"miren.dev/runtime/cli/ingress"
	"miren.dev/runtime/cli/lsvd"
	"miren.dev/runtime/cli/node"
	"miren.dev/runtime/cli/route"
	"miren.dev/runtime/cli/sandbox"
	"miren.dev/runtime/cli/server"
	"miren.dev/runtime/cli/version"
)

// commands are those of the first level.
func commands(e *command.Env) []*cobra.Command {
	return []*cobra.Command{
		app.New(e), app.NewDeploy(e), sandbox.New(e), route.New(e), build.New(e), node.New(e), entity.New(e), lsvd.New(e),
		server.New(e), config.New(e), auth.New(e), doctor.New(e), debug.New(e), version.New(e), completion.New(e), ingress.New(e),
	}
}
