// Package config is the configuration of a server: where each key may come
// from, and what it may be. config.yml is the one place where keys are
// declared; configgen generates config.gen.go and docs/reference/config.md.
//
// A key "ingress.http_address" can be set, strongest first, by the flag
// --ingress-http-address, the environment variable
// RUNTIME_INGRESS_HTTP_ADDRESS, the file (YAML, sections as mappings), or not at
// all (its default). Unknown keys of the file and unknown RUNTIME_ variables
// of a section are errors with a suggestion.
package config

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

// Key is one key. Keys are generated.
type Key struct {
	Path    string // "ingress.http_address"
	Type    string // string, int, bool, duration, enum, list
	Default string // as a user would write it; lists joined by commas
	Doc     string
	Unit    string
	Choices []string // allowed values of an enum
	Min     string   // bounds of an int or duration; empty: unbounded
	Max     string
	Pattern *regexp.Regexp // of a string that is not empty
	field   func(*Config) any
}

// Env returns the name of its environment variable.
func (k *Key) Env() string {
	return "RUNTIME_" + strings.ToUpper(strings.ReplaceAll(k.Path, ".", "_"))
}

// Flag returns the name of its flag, without dashes.
func (k *Key) Flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.Path) }

// Default returns a configuration with every default.
func Default() *Config {
	c := new(Config)
	for i := range Keys {
		if err := Keys[i].set(c, Keys[i].Default); err != nil {
			panic(err) // a generated default breaks its own rule; the test of this package shows it
		}
	}
	return c
}

// Get returns the value of the key as a user would write it.
func (k *Key) Get(c *Config) string {
	switch p := k.field(c).(type) {
	case *string:
		return *p
	case *int64:
		return strconv.FormatInt(*p, 10)
	case *bool:
		return strconv.FormatBool(*p)
	case *time.Duration:
		return p.String()
	case *[]string:
		return strings.Join(*p, ",")
	}
	panic("config: type of " + k.Path)
}

// set parses s and stores it. InvalidArgument if it breaks the key's rules.
func (k *Key) set(c *Config, s string) error {
	bad := func(format string, args ...any) error {
		return errs.New(errs.InvalidArgument, "%s: %s", k.Path, fmt.Sprintf(format, args...)).With("key", k.Path)
	}
	switch p := k.field(c).(type) {
	case *string:
		if k.Choices != nil && !slices.Contains(k.Choices, s) {
			return bad("%q is none of %s", s, strings.Join(k.Choices, ", "))
		}
		if k.Pattern != nil && s != "" && !k.Pattern.MatchString(s) {
			return bad("%q does not match %s", s, k.Pattern)
		}
		if check := checks[k.Path]; check != nil && s != "" {
			if err := check(s); err != nil {
				return bad("%v", err)
			}
		}
		*p = s
	case *int64:
		n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
		if err != nil {
			return bad("%q is not a whole number", s)
		}
		if lo, err := strconv.ParseInt(k.Min, 10, 64); err == nil && n < lo {
			return bad("%d is below the minimum %d", n, lo)
		}
		if hi, err := strconv.ParseInt(k.Max, 10, 64); err == nil && n > hi {
			return bad("%d is above the maximum %d", n, hi)
		}
		*p = n
	case *bool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return bad("%q is neither true nor false", s)
		}
		*p = b
	case *time.Duration:
		d, err := time.ParseDuration(s)
		if err != nil {
			return bad("%q is not a duration like 30s or 5m", s)
		}
		if lo, err := time.ParseDuration(k.Min); err == nil && d < lo {
			return bad("%s is below the minimum %s", d, lo)
		}
		if hi, err := time.ParseDuration(k.Max); err == nil && d > hi {
			return bad("%s is above the maximum %s", d, hi)
		}
		*p = d
	case *[]string:
		var list []string
		for v := range strings.SplitSeq(s, ",") {
			if v = strings.TrimSpace(v); v == "" {
				continue
			}
			if check := checks[k.Path]; check != nil {
				if err := check(v); err != nil {
					return bad("%v", err)
				}
			}
			list = append(list, v)
		}
		*p = list
	default:
		panic("config: type of " + k.Path)
	}
	return nil
}

// lookup returns the key with the given path, or nil.
func lookup(path string) *Key {
	for i := range Keys {
		if Keys[i].Path == path {
			return &Keys[i]
		}
	}
	return nil
}

// DefaultStateDir is the state directory of an installation that names none.
func DefaultStateDir() string { return Default().StateDir }

// DefaultRunDir is the directory of sockets of an installation that names none.
func DefaultRunDir() string { return Default().RunDir }

// AddFlags defines a flag for every key. Load uses the flags that were set.
func AddFlags(f *pflag.FlagSet) {
	for i := range Keys {
		k := &Keys[i]
		usage := k.Doc
		if k.Choices != nil {
			usage += " (" + strings.Join(k.Choices, ", ") + ")"
		}
		f.String(k.Flag(), k.Default, usage)
	}
}

// Load puts a configuration together: defaults, the file (none if path is
// empty), the environment ("NAME=value" pairs), then the flags that were set
// (nil: none). All mistakes are reported at once.
func Load(path string, environ []string, flags *pflag.FlagSet) (*Config, error) {
	c := Default()
	var all []error
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, errs.New(errs.NotFound, "configuration: %w", err)
		}
		all = append(all, c.readYAML(path, b)...)
	}
	env := map[string]string{}
	for _, kv := range environ {
		if name, v, ok := strings.Cut(kv, "="); ok {
			env[name] = v
		}
	}
	all = append(all, unknownVariables(env)...)
	for i := range Keys {
		k := &Keys[i]
		if v, ok := env[k.Env()]; ok {
			if err := k.set(c, v); err != nil {
				all = append(all, errs.Wrap(err, "environment %s", k.Env()))
			}
		}
		if flags != nil && flags.Changed(k.Flag()) {
			v, err := flags.GetString(k.Flag())
			if err == nil {
				err = k.set(c, v)
			}
			if err != nil {
				all = append(all, errs.Wrap(err, "flag --%s", k.Flag()))
			}
		}
	}
	return c, joined(all)
}

// Parse reads a configuration file's contents over the defaults; name is for
// messages.
func Parse(name string, b []byte) (*Config, error) {
	c := Default()
	return c, joined(c.readYAML(name, b))
}

func joined(all []error) error {
	if len(all) == 0 {
		return nil
	}
	lines := make([]string, len(all))
	for i, e := range all {
		lines[i] = e.Error()
	}
	return errs.New(errs.InvalidArgument, "%s", strings.Join(lines, "\n")).WithHint("`r config generate` prints every key with its default")
}

func (c *Config) readYAML(name string, b []byte) []error {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return []error{errs.New(errs.InvalidArgument, "%s: %w", name, err)}
	}
	if doc.Kind == 0 {
		return nil // empty
	}
	r := reader{name: name, config: c, seen: map[string]bool{}}
	r.mapping("", doc.Content[0])
	return r.errs
}

type reader struct {
	name   string
	config *Config
	seen   map[string]bool
	errs   []error
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, errs.New(errs.InvalidArgument, "%s:%d: %s", r.name, n.Line, fmt.Sprintf(format, args...)))
}

func (r *reader) mapping(prefix string, n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s should be a mapping of keys", strings.TrimSuffix("the file "+prefix, "."))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		path := prefix + key.Value
		if r.seen[path] {
			r.fail(key, "%s is set twice", path)
			continue
		}
		r.seen[path] = true
		if slices.ContainsFunc(Keys, func(k Key) bool { return strings.HasPrefix(k.Path, path+".") }) {
			r.mapping(path+".", value)
			continue
		}
		k := lookup(path)
		if k == nil {
			r.fail(key, "unknown key %s%s", path, didYouMean(path))
			continue
		}
		s, ok := scalar(k, value)
		if !ok {
			r.fail(value, "%s should be a %s", path, k.Type)
			continue
		}
		if err := k.set(r.config, s); err != nil {
			r.fail(value, "%s", err)
		}
	}
}

func scalar(k *Key, n *yaml.Node) (string, bool) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return "", k.Type == "string" || k.Type == "list"
	case n.Kind == yaml.ScalarNode:
		return n.Value, k.Type != "list"
	case n.Kind == yaml.SequenceNode && k.Type == "list":
		var all []string
		for _, e := range n.Content {
			if e.Kind != yaml.ScalarNode || strings.Contains(e.Value, ",") {
				return "", false
			}
			all = append(all, e.Value)
		}
		return strings.Join(all, ","), true
	}
	return "", false
}

func didYouMean(path string) string {
	var known []string
	for i := range Keys {
		known = append(known, Keys[i].Path)
	}
	if s := suggest.Nearest(path, known); s != "" {
		return fmt.Sprintf("; did you mean %s?", s)
	}
	return ""
}

// Generate writes a configuration file with every key, its documentation and
// its value in c.
func Generate(w io.Writer, c *Config) error {
	section := ""
	var b strings.Builder
	for i := range Keys {
		k := &Keys[i]
		name, indent := k.Path, ""
		if s, rest, ok := strings.Cut(k.Path, "."); ok {
			if s != section {
				fmt.Fprintf(&b, "\n%s:\n", s)
				section = s
			}
			name, indent = rest, "  "
		}
		fmt.Fprintf(&b, "%s# %s\n", indent, k.describe())
		fmt.Fprintf(&b, "%s%s: %s\n", indent, name, k.yaml(c))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (k *Key) describe() string {
	d := k.Doc
	if k.Choices != nil {
		d += " One of " + strings.Join(k.Choices, ", ") + "."
	}
	if k.Unit != "" {
		d += " In " + k.Unit + "."
	}
	return d
}

func (k *Key) yaml(c *Config) string {
	v := k.Get(c)
	switch k.Type {
	case "list":
		p := *k.field(c).(*[]string)
		q := make([]string, len(p))
		for i := range p {
			q[i] = strconv.Quote(p[i])
		}
		return "[" + strings.Join(q, ", ") + "]"
	case "string", "enum":
		return strconv.Quote(v)
	}
	return v
}
