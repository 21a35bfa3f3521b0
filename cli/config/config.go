// Package config has `r config`: the server's configuration file.
package config

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("config", "Generate and check the configuration of a server", newGenerate(e), newValidate(e))
}

type generateOptions struct {
	*command.Env
	defaults bool
}

func newGenerate(e *command.Env) *cobra.Command {
	o := &generateOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Print a configuration file with every key",
		Long: "Prints a configuration file with every key, its description and its value: the default, or the value from the environment.\n" +
			"Give the file to the server with `r server start --config FILE`.",
		Example: "  r config generate > server.yaml",
		Args:    command.Args(0, 0),
		RunE:    func(*cobra.Command, []string) error { return o.run() },
	}
	cmd.Flags().BoolVar(&o.defaults, "defaults", false, "print defaults and ignore the environment")
	return cmd
}

func (o *generateOptions) run() error {
	cfg := config.Default()
	if !o.defaults {
		var err error
		if cfg, err = config.Load("", os.Environ(), nil); err != nil {
			return err
		}
	}
	if o.JSON {
		return o.PrintJSON(Document(cfg))
	}
	return config.Generate(o.Out, cfg)
}

// Document returns a configuration as a flat map of its keys.
func Document(cfg *config.Config) map[string]string {
	doc := map[string]string{}
	for i := range config.Keys {
		doc[config.Keys[i].Path] = config.Keys[i].Get(cfg)
	}
	return doc
}

type validateOptions struct {
	*command.Env
	file string
}

func newValidate(e *command.Env) *cobra.Command {
	o := &validateOptions{Env: e}
	return &cobra.Command{
		Use:     "validate FILE",
		Short:   "Check a configuration file",
		Example: "  r config validate server.yaml",
		Args:    command.Args(1, 1, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			o.file = args[0]
			return o.run()
		},
	}
}

// maxFile bounds a configuration file, in bytes.
const maxFile = 4 << 20

func (o *validateOptions) run() error {
	name, in := o.file, o.In
	if o.file == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(o.file)
		if errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.NotFound, "file %s does not exist", o.file)
		}
		if err != nil {
			return errs.New(errs.Unavailable, "configuration: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxFile))
	if err != nil {
		return errs.New(errs.Unavailable, "read %s: %w", name, err)
	}
	cfg, err := config.Parse(name, b)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"valid": true, "config": Document(cfg)})
	}
	o.Printf("%s %s is valid\n", o.Paint(console.Green, "✓"), name)
	return nil
}
