// Package mcp has `r mcp`: sandboxes for clients of the Model Context Protocol.
package mcp

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	mcpserver "miren.dev/runtime/servers/mcp"
)

type options struct {
	*command.Env
	tools     []string
	noNetwork bool
	keep      bool
	files     string
	idle      time.Duration
	maxOutput command.Bytes
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	names, groups := mcpserver.ToolNames()
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve sandboxes to a client of the Model Context Protocol",
		Long: `Serves sandboxes to an agent by the Model Context Protocol (MCP) on standard input and output; the agent's program starts
it. Sandboxes that the session made are deleted when it ends, and end earlier when they are not used for the time of
--idle. With --keep they stay, and are paused when they are idle. A sandbox reaches no network unless the agent asks for
it, and with --no-network not even then.

The tools are ` + list(names) + `.
Groups of them, which --tools may name too, are ` + strings.Join(groups, ", ") + `.`,
		Example: "  r mcp\n  r mcp --project research --tools code,files --no-network",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.tools, "tools", nil, "only these tools, and those of these groups; default: all")
	f.BoolVar(&o.noNetwork, "no-network", false, "refuse sandboxes that reach a network")
	f.StringVar(&o.files, "files", "", "folder of this machine from and to which the agent may copy files; default: none")
	f.BoolVar(&o.keep, "keep", false, "keep the sandboxes at the end of the session")
	f.DurationVar(&o.idle, "idle", mcpserver.DefaultIdle, "time without use after which a sandbox of the session ends")
	f.Var(&o.maxOutput, "max-output", "bytes of output that an answer has, for each stream: 16kB, 1MiB; default 64KiB")
	return cmd
}

// list returns names in lines of the help's width.
func list(names []string) string {
	var b strings.Builder
	width := len("The tools are ")
	for i, n := range names {
		if i > 0 {
			b.WriteByte(',')
			if width += len(n) + 2; width > 118 {
				b.WriteByte('\n')
				width = len(n)
			} else {
				b.WriteByte(' ')
			}
		} else {
			width += len(n)
		}
		b.WriteString(n)
	}
	return b.String()
}

func (o *options) run(ctx context.Context) error {
	if err := mcpserver.CheckTools(o.tools); err != nil {
		return exit.With(exit.Usage, err)
	}
	if o.idle < time.Second {
		return exit.Usagef("--idle is %s, the shortest time is 1s", o.idle)
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	return mcpserver.ServeStdio(ctx, mcpserver.Options{
		Client: c, Project: o.Project(), Tools: o.tools, NoNetwork: o.noNetwork, Keep: o.keep, Idle: o.idle, Files: o.files,
		MaxOutput: int(o.maxOutput),
	}, o.In, o.Out)
}
