// Package process has the parts that the processes of a machine share, as the
// server and the disk daemon: the flags of their configuration, and their log.
package process

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

// Config is the flags of the configuration of a server.
type Config struct {
	file  string
	Flags *pflag.FlagSet
}

// AddFlags defines a flag for every key, and --config.
func (o *Config) AddFlags(cmd *cobra.Command) {
	o.Flags = cmd.Flags()
	cmd.Flags().StringVarP(&o.file, "config", "c", "", "configuration file (RUNTIME_CONFIG); flags and environment override it")
	config.AddFlags(cmd.Flags())
}

// Path returns the path of the configuration file, empty for none.
func (o *Config) Path() (string, error) {
	f := o.file
	if f == "" {
		f = os.Getenv("RUNTIME_CONFIG")
	}
	if f == "" {
		return "", nil
	}
	f, err := filepath.Abs(f)
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "configuration: %w", err)
	}
	return f, nil
}

// Load returns the configuration of file, environment and flags.
func (o *Config) Load() (*config.Config, error) {
	path, err := o.Path()
	if err != nil {
		return nil, err
	}
	return config.Load(path, os.Environ(), o.Flags)
}

// Args returns the flags that give a child the same configuration; the child
// inherits the environment.
func (o *Config) Args() ([]string, error) {
	var args []string
	path, err := o.Path()
	if err != nil {
		return nil, err
	}
	if path != "" {
		args = append(args, "--config="+path)
	}
	for i := range config.Keys {
		name := config.Keys[i].Flag()
		if f := o.Flags.Lookup(name); f != nil && f.Changed {
			args = append(args, "--"+name+"="+f.Value.String())
		}
	}
	return args, nil
}

// Logger returns the logger of a server process.
func Logger(cfg *config.Config, w *os.File) *slog.Logger {
	return NewLogger(cfg.Log.Level, cfg.Log.Format, BoundedLog(w))
}

// NewLogger returns a logger with the level and the format that a configuration
// names.
func NewLogger(level, format string, out io.Writer) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo // the configuration allows no other
	}
	opts := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(out, opts))
	}
	return slog.New(slog.NewTextHandler(out, opts))
}

// LastFile is the file with the configuration of the last server of a state
// directory, which that server wrote.
func LastFile(stateDir string) string { return filepath.Join(stateDir, "server.yaml") }

// LastConfig returns the configuration that the last server has written,
// overridden by flags and environment.
func LastConfig(o *Config) (*config.Config, error) {
	cfg, err := o.Load()
	if err != nil {
		return nil, err
	}
	file := LastFile(cfg.StateDir)
	if path, err := o.Path(); err != nil || path != "" {
		return cfg, err
	}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return cfg, nil
	}
	return config.Load(file, os.Environ(), o.Flags)
}
