// Package mcpsandboxd has `mcp-sandboxd`: sandboxes for clients of the Model
// Context Protocol on a machine without a server, by the local installation.
package mcpsandboxd

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/local"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/pkg/configfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/mcpconfig"
	"miren.dev/runtime/pkg/rpc"
	mcpserver "miren.dev/runtime/servers/mcp"
)

// Name is the name of the command, and of a program that is this command alone.
const Name = "mcp-sandboxd"

type options struct {
	*command.Env
	config string
	print  bool
	check  bool
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:   Name,
		Short: "Serve sandboxes by MCP without a server",
		Long: `Serves sandboxes to clients of the Model Context Protocol (MCP), on standard input and output or by HTTP, without a
server: they run in the local installation of this machine, which it starts, and which ends some time after it. Needs
root. The configuration is a YAML file; docs/reference/mcp-sandboxd.md explains its keys.`,
		Example: "  mcp-sandboxd --print-config > mcp-sandboxd.yaml\n  mcp-sandboxd --check-config --config mcp-sandboxd.yaml\n" +
			"  mcp-sandboxd --config mcp-sandboxd.yaml",
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.config, "config", "c", "", "configuration file (MCP_SANDBOXD_CONFIG); the environment overrides it")
	f.BoolVar(&o.print, "print-config", false, "print a configuration file with every key and its value, and exit")
	f.BoolVar(&o.check, "check-config", false, "check the configuration, and exit")
	cmd.MarkFlagsMutuallyExclusive("print-config", "check-config")
	return cmd
}

func checkTool(name string) error { return mcpserver.CheckTools([]string{name}) }

// schema is what the configuration may have.
func schema() *configfile.Schema[mcpconfig.Config] { return mcpconfig.Schema(checkTool) }

func (o *options) run(ctx context.Context) error {
	path := cmp.Or(o.config, os.Getenv("MCP_SANDBOXD_CONFIG"))
	cfg, err := schema().Load(path, os.Environ(), nil)
	if err == nil {
		err = cfg.Validate()
	}
	switch {
	case err != nil:
		return err
	case o.print:
		return schema().Generate(o.Out, cfg)
	case o.check:
		o.Printf("%s %s is valid\n", o.Paint(console.Green, "✓"), cmp.Or(path, "the configuration"))
		return nil
	}
	log, err := logger(cfg, o.Err)
	if err != nil {
		return err
	}
	in, err := local.Open(ctx, local.Options{
		Database: cfg.Sandbox.DatabasePath, RunDir: cfg.Sandbox.RunDir, IdleEnd: cfg.Sandbox.IdleEnd,
		Starting: func(dir string) { log.Info("starting the local installation", "dir", dir) },
	})
	if err != nil {
		return err
	}
	defer in.Close()
	t, err := clientconfig.Resolve(in.Target())
	if err != nil {
		return err
	}
	client, err := rpc.NewClient(t.Address, rpc.ClientOptions{RetryFor: restartTime})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		in.Keep(ctx, log)
	}()
	defer func() {
		cancel()
		<-kept
	}()
	s := mcpserver.Options{
		Client: client, Project: cfg.Sandbox.Project, Tools: cfg.Tools.Enabled, Keep: cfg.Sandbox.Keep, Idle: cfg.Sandbox.Idle, Files: cfg.Files.Folder,
		NoNetwork: cfg.Sandbox.Network == "none" && !cfg.Sandbox.AllowNetwork,
		MaxOutput: int(cfg.Files.MaxOutput), MaxFile: cfg.Files.MaxBytes, Logger: log,
		Limits: mcpserver.Limits{
			Template: cfg.Sandbox.Template, Templates: cfg.Sandbox.Templates, CPUMillis: cfg.Sandbox.CPUMillis, MemoryBytes: cfg.Sandbox.MemoryBytes,
			DiskBytes: cfg.Sandbox.DiskBytes, Open: cfg.Sandbox.Network == "bridge", TTL: cfg.Sandbox.TTL, RunTimeout: cfg.Sandbox.RunTimeout,
		},
	}
	log.Info("mcp-sandboxd runs", "protocol", cfg.Server.Protocol, "database", cfg.Sandbox.DatabasePath)
	if cfg.Server.Protocol == "http" {
		return serveHTTP(ctx, cfg, s, log)
	}
	return mcpserver.ServeStdio(ctx, s, o.In, o.Out)
}

func logger(cfg *mcpconfig.Config, stderr io.Writer) (*slog.Logger, error) {
	out := stderr
	if cfg.Log.File != "" {
		var err error
		if out, err = process.OpenLog(cfg.Log.File, cfg.Log.MaxBytes); err != nil {
			return nil, errs.Wrap(err, "log.file")
		}
	}
	return process.NewLogger(cfg.Log.Level, cfg.Log.Format, out), nil
}
