// Package machine has the commands that need the machine of a server. Only the
// program runtime links it; the client r hands these commands over to runtime.
package machine

import (
	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/debugbundle"
	"miren.dev/runtime/cli/devmock"
	"miren.dev/runtime/cli/doctor"
	"miren.dev/runtime/cli/hostcheck"
	"miren.dev/runtime/cli/ingress"
	"miren.dev/runtime/cli/lsvd"
	"miren.dev/runtime/cli/serverctl"
)

// Commands are the constructors of these commands, by their path in the table
// of package cli.
var Commands = cli.Machine{
	"server start":          serverctl.NewStart,
	"server stop":           serverctl.NewStop,
	"server move-store":     serverctl.NewMoveStore,
	"server refresh-images": serverctl.NewRefreshImages,
	"server export-images":  serverctl.NewExportImages,
	"server import-images":  serverctl.NewImportImages,
	"server install":        serverctl.NewInstall,
	"server upgrade":        serverctl.NewUpgrade,
	"server uninstall":      serverctl.NewUninstall,
	"server backup":         serverctl.NewBackup,
	"server restore":        serverctl.NewRestore,
	"server run":            serverctl.NewRun,
	"runner start":          serverctl.NewRunnerStart,
	"runner stop":           serverctl.NewRunnerStop,
	"ingress":               ingress.New,
	"lsvd":                  lsvd.New,
	"debug bundle":          debugbundle.With(hostcheck.Checks),
	"dev mock":              devmock.New,
	"doctor":                doctor.WithChecks(hostcheck.Checks),
}
