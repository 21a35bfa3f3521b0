// Package config is the configuration of a server. config.yml is the one place
// where keys are declared; configgen generates config.gen.go and
// docs/reference/config.md. Package configfile says where a key may come from.
package config

import (
	"io"

	"github.com/spf13/pflag"

	"miren.dev/runtime/pkg/configfile"
)

// Key is one key.
type Key = configfile.Key[Config]

var schema = configfile.Schema[Config]{Keys: Keys, Checks: checks, Hint: "`r config generate` prints every key with its default"}

// Default returns a configuration with every default.
func Default() *Config { return schema.Default() }

// DefaultStateDir is the state directory of an installation that names none.
func DefaultStateDir() string { return Default().StateDir }

// DefaultRunDir is the directory of sockets of an installation that names none.
func DefaultRunDir() string { return Default().RunDir }

// AddFlags defines a flag for every key. Load uses the flags that were set.
func AddFlags(f *pflag.FlagSet) { schema.AddFlags(f) }

// Load puts a configuration together: defaults, the file (none if path is
// empty), the environment ("NAME=value" pairs), then the flags that were set
// (nil: none). All mistakes are reported at once.
func Load(path string, environ []string, flags *pflag.FlagSet) (*Config, error) {
	return schema.Load(path, environ, flags)
}

// Parse reads a configuration file's contents over the defaults; name is for
// messages.
func Parse(name string, b []byte) (*Config, error) { return schema.Parse(name, b) }

// Generate writes a configuration file with every key, its documentation and
// its value in c.
func Generate(w io.Writer, c *Config) error { return schema.Generate(w, c) }
