package interpreter

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/schema"
)

// NewContext makes the commands of contexts.
func NewContext(e *command.Env) *cobra.Command {
	return command.Group("context", "Contexts, in which code keeps its variables", newList(e), newCreate(e),
		newOn(e, "interrupt", "Interrupt what a context executes", "interrupted", func(ctx context.Context, c interpreter.InterpreterClient, r *interpreter.ContextRequest) error {
			_, err := c.Interrupt(ctx, r)
			return err
		}),
		newOn(e, "restart", "Replace the process of a context, without variables", "restarted", func(ctx context.Context, c interpreter.InterpreterClient, r *interpreter.ContextRequest) error {
			_, err := c.Restart(ctx, r)
			return err
		}),
		newOn(e, "delete", "Delete a context", "deleted", func(ctx context.Context, c interpreter.InterpreterClient, r *interpreter.ContextRequest) error {
			return c.Delete(ctx, r)
		}))
}

// in has a command use a sandbox by its name or id.
func in(ctx context.Context, e *command.Env, name string, do func(interpreter.InterpreterClient, id.Sandbox) error) error {
	s, err := command.Find[sandbox.Sandbox](ctx, e, name)
	if err != nil {
		return err
	}
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	return do(c, s.GetID())
}

func newList(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "list ID",
		Short:             "List the contexts of a sandbox",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return in(cmd.Context(), e, args[0], func(c interpreter.InterpreterClient, sid id.Sandbox) error {
				resp, err := c.List(cmd.Context(), &interpreter.ContextsRequest{Sandbox: sid})
				if err != nil {
					return err
				}
				return printContexts(e, resp.Contexts)
			})
		},
	}
}

func printContexts(e *command.Env, list []interpreter.CodeContext) error {
	if e.JSON {
		return e.PrintJSON(list)
	}
	var rows [][]string
	for _, c := range list {
		state, age := "idle", ""
		if c.Busy != nil && *c.Busy {
			state = "busy"
		}
		if c.CreatedAt != nil {
			age = schema.CellAge(*c.CreatedAt, time.Now())
		}
		rows = append(rows, []string{c.ID, c.Language, state, schema.Cell(c.Executions), c.Workdir, age})
	}
	if len(rows) == 0 && e.Terminal {
		e.Notef("there are no contexts\n")
		return nil
	}
	e.Table([]string{"ID", "LANGUAGE", "STATE", "EXECUTIONS", "WORKDIR", "AGE"}, rows)
	return nil
}

func newCreate(e *command.Env) *cobra.Command {
	var language, workdir string
	var env []string
	cmd := &cobra.Command{
		Use:               "create ID",
		Short:             "Make a context and print its id",
		Example:           "  r sandbox context create sb-4k2j -l js",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			vars, err := command.ParseEnv(env)
			if err != nil {
				return err
			}
			return in(cmd.Context(), e, args[0], func(c interpreter.InterpreterClient, sid id.Sandbox) error {
				resp, err := c.Create(cmd.Context(), &interpreter.CreateContextRequest{Sandbox: sid, Language: language, Workdir: workdir, Env: vars})
				if err != nil {
					return err
				}
				if e.JSON {
					return e.PrintJSON(resp.Context)
				}
				e.Printf("%s\n", resp.Context.ID)
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&language, "language", "l", "", "python, javascript, typescript or shell; default python")
	cmd.Flags().StringVarP(&workdir, "workdir", "w", "", "working directory; default: the sandbox's")
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "environment variable, KEY=VALUE, or KEY for its value here")
	return cmd
}

// newOn makes a command that has a context do something.
func newOn(e *command.Env, verb, short, done string, do func(context.Context, interpreter.InterpreterClient, *interpreter.ContextRequest) error) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " ID CONTEXT",
		Short:             short,
		Args:              command.Args(2, 2, "ID", "CONTEXT"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return in(cmd.Context(), e, args[0], func(c interpreter.InterpreterClient, sid id.Sandbox) error {
				if err := do(cmd.Context(), c, &interpreter.ContextRequest{Sandbox: sid, Context: args[1]}); err != nil {
					return err
				}
				if e.JSON {
					return e.PrintJSON(map[string]string{"event": done, "sandbox": string(sid), "context": args[1]})
				}
				e.Printf("%s %s\n", done, args[1])
				return nil
			})
		},
	}
}
