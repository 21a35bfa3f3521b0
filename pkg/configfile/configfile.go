// Package configfile reads configurations whose keys are declared in YAML by the
// schema language (pkg/schema/lang): where each key may come from, and what it may
// be. configgen generates the keys; packages config and mcpconfig are such
// configurations.
//
// A key "ingress.http_address" can be set, strongest first, by a flag
// --ingress-http-address, an environment variable with the prefix of the
// configuration (RUNTIME_INGRESS_HTTP_ADDRESS), the file (YAML, sections as
// mappings), or not at all (its default). Unknown keys of the file and unknown
// variables of a section are errors with a suggestion.
package configfile

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

// Key is one key of a configuration C. Keys are generated.
type Key[C any] struct {
	Path    string // "ingress.http_address"
	Type    string // string, int, bool, duration, enum, list
	Default string // as a user would write it; lists joined by commas
	Doc     string
	Unit    string
	Choices []string // allowed values of an enum
	Min     string   // bounds of an int or duration; empty: unbounded
	Max     string
	Pattern *regexp.Regexp // of a string that is not empty
	Prefix  string         // of its environment variable
	Field   func(*C) any   // pointer to its value
}

// Schema is what a configuration may have.
type Schema[C any] struct {
	Keys []Key[C] // in the order of the documentation
	// Checks are the rules that a pattern cannot express, by key. Lists are checked
	// element by element. Empty strings are not checked.
	Checks map[string]func(string) error
	Hint   string // what to do about a mistake
}

// Env returns the name of its environment variable.
func (k *Key[C]) Env() string {
	return k.Prefix + "_" + strings.ToUpper(strings.ReplaceAll(k.Path, ".", "_"))
}

// Flag returns the name of its flag, without dashes.
func (k *Key[C]) Flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.Path) }

// Default returns a configuration with every default.
func (s *Schema[C]) Default() *C {
	c := new(C)
	for i := range s.Keys {
		if err := s.Set(&s.Keys[i], c, s.Keys[i].Default); err != nil {
			panic(err) // a generated default breaks its own rule; the test of its package shows it
		}
	}
	return c
}

// Get returns the value of the key as a user would write it.
func (k *Key[C]) Get(c *C) string {
	switch p := k.Field(c).(type) {
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

// Set parses a value and stores it. InvalidArgument if it breaks the key's rules.
func (s *Schema[C]) Set(k *Key[C], c *C, value string) error {
	bad := func(format string, args ...any) error {
		return errs.New(errs.InvalidArgument, "%s: %s", k.Path, fmt.Sprintf(format, args...)).With("key", k.Path)
	}
	switch p := k.Field(c).(type) {
	case *string:
		if k.Choices != nil && !slices.Contains(k.Choices, value) {
			return bad("%q is none of %s", value, strings.Join(k.Choices, ", "))
		}
		if k.Pattern != nil && value != "" && !k.Pattern.MatchString(value) {
			return bad("%q does not match %s", value, k.Pattern)
		}
		if check := s.Checks[k.Path]; check != nil && value != "" {
			if err := check(value); err != nil {
				return bad("%v", err)
			}
		}
		*p = value
	case *int64:
		n, err := strconv.ParseInt(strings.ReplaceAll(value, "_", ""), 10, 64)
		if err != nil {
			return bad("%q is not a whole number", value)
		}
		if lo, err := strconv.ParseInt(k.Min, 10, 64); err == nil && n < lo {
			return bad("%d is below the minimum %d", n, lo)
		}
		if hi, err := strconv.ParseInt(k.Max, 10, 64); err == nil && n > hi {
			return bad("%d is above the maximum %d", n, hi)
		}
		*p = n
	case *bool:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return bad("%q is neither true nor false", value)
		}
		*p = b
	case *time.Duration:
		d, err := time.ParseDuration(value)
		if err != nil {
			return bad("%q is not a duration like 30s or 5m", value)
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
		for v := range strings.SplitSeq(value, ",") {
			if v = strings.TrimSpace(v); v == "" {
				continue
			}
			if check := s.Checks[k.Path]; check != nil {
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

// Lookup returns the key with the given path, or nil.
func (s *Schema[C]) Lookup(path string) *Key[C] {
	for i := range s.Keys {
		if s.Keys[i].Path == path {
			return &s.Keys[i]
		}
	}
	return nil
}

// AddFlags defines a flag for every key. Load uses the flags that were set.
func (s *Schema[C]) AddFlags(f *pflag.FlagSet) {
	for i := range s.Keys {
		k := &s.Keys[i]
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
func (s *Schema[C]) Load(path string, environ []string, flags *pflag.FlagSet) (*C, error) {
	c := s.Default()
	var all []error
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, errs.New(errs.NotFound, "configuration: %w", err)
		}
		all = append(all, s.readYAML(c, path, b)...)
	}
	env := map[string]string{}
	for _, kv := range environ {
		if name, v, ok := strings.Cut(kv, "="); ok {
			env[name] = v
		}
	}
	all = append(all, s.unknownVariables(env)...)
	for i := range s.Keys {
		k := &s.Keys[i]
		if v, ok := env[k.Env()]; ok {
			if err := s.Set(k, c, v); err != nil {
				all = append(all, errs.Wrap(err, "environment %s", k.Env()))
			}
		}
		if flags != nil && flags.Changed(k.Flag()) {
			v, err := flags.GetString(k.Flag())
			if err == nil {
				err = s.Set(k, c, v)
			}
			if err != nil {
				all = append(all, errs.Wrap(err, "flag --%s", k.Flag()))
			}
		}
	}
	return c, s.joined(all)
}

// Parse reads a configuration file's contents over the defaults; name is for
// messages.
func (s *Schema[C]) Parse(name string, b []byte) (*C, error) {
	c := s.Default()
	return c, s.joined(s.readYAML(c, name, b))
}

func (s *Schema[C]) joined(all []error) error {
	if len(all) == 0 {
		return nil
	}
	lines := make([]string, len(all))
	for i, e := range all {
		lines[i] = e.Error()
	}
	return errs.New(errs.InvalidArgument, "%s", strings.Join(lines, "\n")).WithHint("%s", s.Hint)
}

func (s *Schema[C]) readYAML(c *C, name string, b []byte) []error {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return []error{errs.New(errs.InvalidArgument, "%s: %w", name, err)}
	}
	if doc.Kind == 0 {
		return nil // empty
	}
	r := reader[C]{schema: s, name: name, config: c, seen: map[string]bool{}}
	r.mapping("", doc.Content[0])
	return r.errs
}

type reader[C any] struct {
	schema *Schema[C]
	name   string
	config *C
	seen   map[string]bool
	errs   []error
}

func (r *reader[C]) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, errs.New(errs.InvalidArgument, "%s:%d: %s", r.name, n.Line, fmt.Sprintf(format, args...)))
}

func (r *reader[C]) mapping(prefix string, n *yaml.Node) {
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
		if slices.ContainsFunc(r.schema.Keys, func(k Key[C]) bool { return strings.HasPrefix(k.Path, path+".") }) {
			r.mapping(path+".", value)
			continue
		}
		k := r.schema.Lookup(path)
		if k == nil {
			r.fail(key, "unknown key %s%s", path, r.schema.didYouMean(path))
			continue
		}
		s, ok := scalar(k.Type, value)
		if !ok {
			r.fail(value, "%s should be a %s", path, k.Type)
			continue
		}
		if err := r.schema.Set(k, r.config, s); err != nil {
			r.fail(value, "%s", err)
		}
	}
}

func scalar(kind string, n *yaml.Node) (string, bool) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return "", kind == "string" || kind == "list"
	case n.Kind == yaml.ScalarNode:
		return n.Value, kind != "list"
	case n.Kind == yaml.SequenceNode && kind == "list":
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

func (s *Schema[C]) didYouMean(path string) string {
	var known []string
	for i := range s.Keys {
		known = append(known, s.Keys[i].Path)
	}
	if near := suggest.Nearest(path, known); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// Generate writes a configuration file with every key, its documentation and
// its value in c.
func (s *Schema[C]) Generate(w io.Writer, c *C) error {
	section := ""
	var b strings.Builder
	for i := range s.Keys {
		k := &s.Keys[i]
		name, indent := k.Path, ""
		if of, rest, ok := strings.Cut(k.Path, "."); ok {
			if of != section {
				fmt.Fprintf(&b, "\n%s:\n", of)
				section = of
			}
			name, indent = rest, "  "
		}
		fmt.Fprintf(&b, "%s# %s\n", indent, k.describe())
		fmt.Fprintf(&b, "%s%s: %s\n", indent, name, k.yaml(c))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (k *Key[C]) describe() string {
	d := k.Doc
	if k.Choices != nil {
		d += " One of " + strings.Join(k.Choices, ", ") + "."
	}
	if k.Unit != "" {
		d += " In " + k.Unit + "."
	}
	return d
}

func (k *Key[C]) yaml(c *C) string {
	v := k.Get(c)
	switch k.Type {
	case "list":
		p := *k.Field(c).(*[]string)
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
