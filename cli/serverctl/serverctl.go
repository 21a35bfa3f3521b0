// Package serverctl has the commands that control the server of this machine:
// `r server start`, `r server stop`, and `r server run`, which is the server
// process itself.
//
//	<state>/logs/server.log   output of a server in the background; the previous file is server.log.1
//	<state>/server.yaml       the configuration of the running server
//	<run>/<id>/server.json    its process (package proc)
package serverctl

import (
	"context"
	"net"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/command"
	cliserver "miren.dev/runtime/cli/server"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
)

// connectTo makes the server of a configuration the one that commands call.
func connectTo(e *command.Env, cfg *config.Config) {
	e.Options = clientconfig.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir}
}

func recordFile(in *instance.Instance) string { return in.Socket("server.json") }

func logFile(in *instance.Instance) string { return in.State("logs", "server.log") }

// requestStop has the server stop.
func requestStop(ctx context.Context, e *command.Env) error {
	ctx, cancel := context.WithTimeout(ctx, cliserver.CallTimeout)
	defer cancel()
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	defer e.Close()
	// The command itself removes the other parts, so that it works the same
	// when the server is dead.
	return server.NewServerClient(c).Stop(ctx, &server.StopRequest{KeepRunning: true})
}

// portOf returns ":8080" of an address, empty for the default port of HTTP.
func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil || port == "80" {
		return ""
	}
	return ":" + port
}
