// Package runcode has `r run`: a program in a new sandbox.
package runcode

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/transfer"
)

// maxBytes bounds a program and its files together, in bytes. The
// server has a lower bound.
const maxBytes = 16 << 20

type options struct {
	*command.Env
	exec     command.ExecFlags
	sandbox  command.SandboxFlags
	language string
	template string
	agent    string
	files    []string
	out      []string
	memory   command.Bytes
	cpu      command.CPU
	secrets  []string
	network  string
	timeout  time.Duration
	wait     time.Duration
	keep     bool
	confine  bool
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:   "run [-l LANGUAGE] FILE|CODE [ARGS...]",
		Short: "Run a program in a new sandbox",
		Long: `Runs a program in a new sandbox of its language's template, returns its exit code, and deletes the sandbox. Input and
output pass through unchanged. The program is a file, whose extension tells the language, or with --language code on
the command line; - reads it from standard input. --out copies out files that it made, also when it failed. Warm
sandboxes of the template make it quick.`,
		Example: "  r run -l python 'print(6*7)'\n  r run main.go\n  r run --out plot.png plot.py\n  r run -l js --file data.json 'console.log(require(\"./data.json\"))'\n  echo 'echo hello' | r run -l sh -",
		Args:    command.Args(1, -1, "FILE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // the program's arguments follow it
	f.StringVarP(&o.language, "language", "l", "", "language: python, javascript, typescript, go, rust, java, cpp, csharp, shell")
	f.StringVar(&o.template, "template", "", "template instead of the language's; NAME, NAME:TAG or NAME:NUMBER")
	f.StringVar(&o.agent, "agent", "", "name of the agent, whose sandbox is used again; implies --keep")
	f.StringArrayVarP(&o.files, "file", "f", nil, "more files for the working directory: PATH, or PATH:DESTINATION")
	f.StringArrayVarP(&o.out, "out", "o", nil, "files and folders to copy out when the program has ended: PATH, or PATH:DESTINATION")
	f.Var(&o.memory, "memory", "memory limit: 512MB, 2GiB")
	f.Var(&o.cpu, "cpu", "CPU limit: 0.5, 2, 500m")
	f.StringVar(&o.network, "network", "", "network: bridge or none")
	f.DurationVar(&o.timeout, "timeout", 0, "end the program after this time, with exit code 124")
	f.DurationVar(&o.wait, "wait", 0, "time in which the sandbox must run, 1s to 1h; default 1m")
	f.BoolVar(&o.keep, "keep", false, "keep the sandbox after the program has ended")
	f.BoolVar(&o.confine, "confine", false, "run the program in a second layer inside the sandbox, which writes only to its directory and /tmp")
	f.StringArrayVar(&o.secrets, "secret", nil, "secret environment variable, KEY=VALUE, or KEY for its value here")
	o.exec.AddFlags(cmd)
	o.sandbox.AddFlags(cmd)
	return cmd
}

func (o *options) run(ctx context.Context, args []string) error {
	req, err := o.request(args)
	if err != nil {
		return err
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	out := transfer.NewOutputs(o.out)
	req.Outputs = out.Paths
	code, err := attach.RunCode(ctx, o.Console, sandbox.NewSandboxesClient(c), req, out.Receive)
	return attach.Code(out.Finish(o.Console, code, err))
}

func (o *options) request(args []string) (*sandbox.RunCodeRequest, error) {
	env, err := o.exec.Environment()
	if err != nil {
		return nil, err
	}
	secrets, err := command.ParseSecrets(o.secrets)
	if err != nil {
		return nil, err
	}
	keep, stdin := o.keep || o.agent != "", !o.exec.NoStdin
	req := &sandbox.RunCodeRequest{
		Sandbox: sandbox.RunRequest{
			Project: o.Project(), Template: o.template, Agent: o.agent, Workdir: o.exec.Workdir, User: o.exec.User, Env: env, EnvSecret: secrets,
			Network: sandbox.NetworkMode(o.network), CPUMillis: o.cpu.Ptr(), MemoryBytes: o.memory.Ptr(),
		},
		Language: o.language, Args: args[1:], TTY: &o.exec.TTY, Keep: &keep, Confine: &o.confine,
	}
	if req.Code, req.File, err = Program(o.In, o.language, args[0]); err != nil {
		return nil, err
	}
	if args[0] == "-" {
		stdin = false // it was the program
	}
	req.Stdin = &stdin
	if req.Files, err = InputFiles(o.files); err != nil {
		return nil, err
	}
	if o.timeout > 0 {
		req.Timeout = &o.timeout
	}
	if o.wait > 0 {
		req.StartTimeout = &o.wait
	}
	if err := o.sandbox.Apply(&req.Sandbox); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	return req, nil
}

// otherForms tells a user whose argument is no program which command they may have meant.
const otherForms = "For code on the command line give its language: -l python '...'. " +
	"`r app run -- COMMAND` runs a command of an app, `r sandbox run -- COMMAND` any other"

// Program returns the code that arg names, a file, code itself, or - for standard
// input, and the name of its file, if it has one.
func Program(in io.Reader, language, arg string) (code []byte, file string, err error) {
	if arg == "-" {
		if language == "" {
			return nil, "", exit.Usagef("--language must say what the code on standard input is")
		}
		code, err = io.ReadAll(io.LimitReader(in, maxBytes+1))
		return code, "", bounded(code, "standard input", err)
	}
	info, serr := os.Stat(arg)
	isFile := serr == nil && info.Mode().IsRegular()
	switch {
	case language != "" && !isFile:
		return []byte(arg), "", nil
	case serr != nil && errors.Is(serr, fs.ErrNotExist):
		return nil, "", exit.Usagef("there is no file %s. %s", arg, otherForms)
	case serr != nil:
		return nil, "", exit.Usagef("%v", serr)
	case !isFile:
		return nil, "", exit.Usagef("%s is not a file. %s", arg, otherForms)
	}
	code, err = readFile(arg)
	return code, filepath.Base(arg), err
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, exit.Usagef("%v", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	return b, bounded(b, name, err)
}

func bounded(b []byte, name string, err error) error {
	if err != nil {
		return exit.Usagef("read %s: %v", name, err)
	}
	if len(b) > maxBytes {
		return exit.Usagef("%s has more than %d MiB", name, maxBytes>>20)
	}
	return nil
}

// InputFiles reads PATH and PATH:DESTINATION; a directory is read whole.
func InputFiles(args []string) ([]sandbox.InputFile, error) {
	var out []sandbox.InputFile
	for _, arg := range args {
		local, dest, ok := strings.Cut(arg, ":")
		if !ok || dest == "" {
			dest = filepath.Base(filepath.Clean(local))
		}
		err := filepath.WalkDir(local, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err != nil || !info.Mode().IsRegular() {
				return err
			}
			b, err := readFile(p)
			if err != nil {
				return err
			}
			to := dest
			if rel, rerr := filepath.Rel(local, p); rerr == nil && rel != "." {
				to = path.Join(dest, filepath.ToSlash(rel))
			}
			executable := info.Mode()&0o111 != 0
			out = append(out, sandbox.InputFile{Path: to, Data: b, Executable: &executable})
			return nil
		})
		if err != nil {
			return nil, exit.Usagef("--file %s: %v", arg, err)
		}
	}
	return out, nil
}
