// Package interpreter has `r sandbox code` and `r sandbox context`: code in a
// sandbox, whose state lasts.
package interpreter

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

// maxBytes bounds what is read for code, in bytes. The server's bound is lower.
const maxBytes = 16 << 20

const (
	exitTimeout = 124 // as timeout(1) has it
	plainText   = "text/plain"
)

func client(ctx context.Context, e *command.Env) (interpreter.InterpreterClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return interpreter.NewInterpreterClient(c), nil
}

type codeOptions struct {
	*command.Env
	language string
	in       string
	file     string
	env      []string
	timeout  time.Duration
}

// NewCode makes `code`.
func NewCode(e *command.Env) *cobra.Command {
	o := &codeOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "code ID CODE|-",
		Short: "Execute code in a sandbox, whose variables stay",
		Long: `Executes code in a sandbox and prints what it prints and the value of its last expression. Variables, functions and the
working directory stay for the next execution, in python, javascript, typescript and shell. Other languages are compiled
and run each time. The exit code is 1 if the code raises an error, 124 if its time is over, 130 if it is interrupted.
--json prints every event, images and tables included, as a line. - reads the code from standard input.`,
		Example:           "  r sandbox code sb-4k2j 'x = 41'\n  r sandbox code sb-4k2j 'x + 1'\n  r sandbox code sb-4k2j -l js 'await fetch(\"https://example.com\").then(r => r.status)'\n  r sandbox code sb-4k2j --file plot.py --json",
		Args:              command.Args(1, 2, "ID", "CODE"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.language, "language", "l", "", "language; default: that of the context, or python")
	f.StringVar(&o.in, "context", "", "id of a context; default: the language's own")
	f.StringVarP(&o.file, "file", "f", "", "file with the code")
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment variable of this execution, KEY=VALUE, or KEY for its value here")
	f.DurationVar(&o.timeout, "timeout", 0, "interrupt the code after this time")
	return cmd
}

func (o *codeOptions) run(ctx context.Context, args []string) error {
	req := &interpreter.RunRequest{Language: o.language, Context: o.in}
	var err error
	if req.Code, err = o.code(args[1:]); err != nil {
		return err
	}
	if req.Env, err = command.ParseEnv(o.env); err != nil {
		return err
	}
	if o.timeout > 0 {
		req.Timeout = &o.timeout
	}
	s, err := command.Find[sandbox.Sandbox](ctx, o.Env, args[0])
	if err != nil {
		return err
	}
	req.Sandbox = s.GetID()
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	st, err := c.Run(ctx, req)
	if err != nil {
		return err
	}
	defer st.Close()
	return o.print(st.Recv)
}

// code reads the code: from the file, the command line or standard input.
func (o *codeOptions) code(args []string) (string, error) {
	var r io.Reader
	switch {
	case (o.file == "") == (len(args) == 0):
		return "", exit.Usagef("give the code either on the command line or with --file")
	case o.file != "":
		f, err := os.Open(o.file)
		if err != nil {
			return "", exit.Usagef("%v", err)
		}
		defer f.Close()
		r = f
	case args[0] == "-":
		r = o.In
	default:
		r = strings.NewReader(args[0])
	}
	b, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	switch {
	case err != nil:
		return "", exit.Usagef("read the code: %v", err)
	case len(b) > maxBytes:
		return "", exit.Usagef("the code has more than %d MiB", maxBytes>>20)
	case len(b) == 0:
		return "", exit.Usagef("there is no code")
	}
	return string(b), nil
}

// print prints the events of an execution and returns its exit code as error.
func (o *codeOptions) print(next func() (*interpreter.RunEvent, error)) error {
	for {
		ev, err := next()
		if errors.Is(err, io.EOF) {
			return errors.New("the server ended the call without the end of the execution")
		}
		if err != nil {
			return err
		}
		if o.JSON {
			err = o.PrintJSONLine(ev)
		} else {
			err = o.show(ev)
		}
		if err != nil {
			return err
		}
		if ev.End != nil {
			return codeOf(ev.End.Outcome)
		}
	}
}

func (o *codeOptions) show(ev *interpreter.RunEvent) error {
	out, text := o.Out, ev.Stdout
	switch {
	case ev.Stderr != "":
		out, text = o.Err, ev.Stderr
	case ev.Error != nil:
		out, text = o.Err, line(ev.Error.Traceback)
		if ev.Error.Traceback == "" {
			text = ev.Error.Name + ": " + line(ev.Error.Value)
		}
	case ev.Result != nil:
		text = line(ev.Result.Formats[plainText])
		if rich := slices.DeleteFunc(slices.Sorted(maps.Keys(ev.Result.Formats)), func(f string) bool { return f == plainText }); len(rich) > 0 {
			o.Notef("also as %s: --json prints it\n", strings.Join(rich, ", "))
		}
	case ev.End != nil && ev.End.StateLost != nil && *ev.End.StateLost:
		o.Notef("the process of the context has ended: its variables are gone\n")
	}
	_, err := io.WriteString(out, text)
	return err
}

// line returns text that ends with a newline, unless it is empty.
func line(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}

func codeOf(outcome interpreter.Outcome) error {
	switch outcome {
	case interpreter.OutcomeCompleted:
		return nil
	case interpreter.OutcomeTimeout:
		return exit.With(exitTimeout, nil)
	case interpreter.OutcomeInterrupted:
		return exit.With(exit.Interrupted, nil)
	}
	return exit.With(exit.Failed, nil)
}
