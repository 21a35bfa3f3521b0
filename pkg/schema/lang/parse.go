package lang

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the size of a schema file, in bytes.
const maxFile = 4 << 20

var nameRE = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// Parse reads the schema file at path.
func Parse(path string) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	return parseBytes(path, b)
}

// parseBytes parses the contents of a schema file; path is for messages.
func parseBytes(path string, b []byte) (*File, error) {
	root, err := Root(path, b)
	if err != nil {
		return nil, err
	}
	known := Constants{}
	_, list := declared(path, root)
	known.Add(list)
	return parse(path, root, known)
}

// parse parses a file that may refer to the constants known.
func parse(path string, root *yaml.Node, known Constants) (*File, error) {
	p := &Parser{File: path, Constants: known}
	p.Domain, _ = declared(path, root)
	f := &File{Path: path}
	p.Mapping(root, "", map[string]func(*yaml.Node){
		"domain":     func(n *yaml.Node) { f.Domain = p.Name(n) },
		"doc":        func(n *yaml.Node) { f.Doc = p.Str(n) },
		"constants":  func(n *yaml.Node) { f.Constants = p.constants(n, p.Domain) },
		"enums":      func(n *yaml.Node) { f.Enums = p.Enums(n) },
		"components": func(n *yaml.Node) { f.Components = p.Components(n) },
		"kinds":      func(n *yaml.Node) { f.Kinds = p.kinds(n) },
	})
	if f.Domain == "" {
		p.Errorf(root, "domain is missing")
	}
	for _, e := range f.Enums {
		e.Domain = f.Domain
	}
	for _, c := range f.Components {
		c.Domain = f.Domain
	}
	for _, k := range f.Kinds {
		k.Domain = f.Domain
	}
	return f, p.Err()
}

// Root parses YAML and returns the top mapping.
func Root(path string, b []byte) (*yaml.Node, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxFile)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:1: a mapping is expected", path)
	}
	return doc.Content[0], nil
}

// Parser turns YAML nodes into values and collects errors with their positions.
// It is exported for the generators whose files have sections of their own.
type Parser struct {
	File    string
	Records bool // fields of type record are allowed
	// Constants are those that fields may refer to; Domain qualifies a name
	// without a domain.
	Constants Constants
	Domain    string
	errs      []error
}

// Err returns every error so far, joined.
func (p *Parser) Err() error { return errors.Join(p.errs...) }

// Pos returns the place of n.
func (p *Parser) Pos(n *yaml.Node) Pos { return Pos{p.File, n.Line} }

// Errorf records an error at n.
func (p *Parser) Errorf(n *yaml.Node, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s: %s", p.Pos(n), fmt.Sprintf(format, args...)))
}

// Mapping calls the function of each key of the mapping n. Unknown and
// repeated keys are errors. what names the mapping in messages.
func (p *Parser) Mapping(n *yaml.Node, what string, keys map[string]func(*yaml.Node)) {
	p.Each(n, what, func(k, v *yaml.Node) {
		f, ok := keys[k.Value]
		if !ok {
			known := make([]string, 0, len(keys))
			for name := range keys {
				known = append(known, name)
			}
			p.Errorf(k, "%sunknown key %q%s", prefix(what), k.Value, Suggest(k.Value, known))
			return
		}
		f(v)
	})
}

func prefix(what string) string {
	if what == "" {
		return ""
	}
	return what + ": "
}

// Each calls f for each key and value of the mapping n, in order.
func (p *Parser) Each(n *yaml.Node, what string, f func(k, v *yaml.Node)) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		p.Errorf(n, "%sa mapping is expected", prefix(what))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			p.Errorf(k, "%sa plain key is expected", prefix(what))
			continue
		}
		if seen[k.Value] {
			p.Errorf(k, "%skey %q is repeated", prefix(what), k.Value)
			continue
		}
		seen[k.Value] = true
		f(k, v)
	}
}

// Str returns the scalar n as a string.
func (p *Parser) Str(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		p.Errorf(n, "a string is expected")
		return ""
	}
	return n.Value
}

// Name returns the scalar n, which must be lower_snake_case.
func (p *Parser) Name(n *yaml.Node) string {
	s := p.Str(n)
	if s != "" && !nameRE.MatchString(s) {
		p.Errorf(n, "name %q is not lower_snake_case", s)
	}
	return s
}

// TypeName returns a name that may be qualified with a domain.
func (p *Parser) TypeName(n *yaml.Node) string {
	s := p.Str(n)
	d, name, ok := strings.Cut(s, ".")
	if !ok {
		d, name = name, d
	}
	if s != "" && (!nameRE.MatchString(name) || ok && !nameRE.MatchString(d)) {
		p.Errorf(n, "%q is not a name or domain.name", s)
	}
	return s
}

// OneOf returns the scalar n, which must be one of choices.
func (p *Parser) OneOf(n *yaml.Node, choices ...string) string {
	s := p.Str(n)
	for _, c := range choices {
		if s == c {
			return s
		}
	}
	p.Errorf(n, "%q is not one of %s%s", s, strings.Join(choices, ", "), Suggest(s, choices))
	return ""
}

// Bool returns the scalar n as a bool.
func (p *Parser) Bool(n *yaml.Node) bool {
	var b bool
	if n.Tag != "!!bool" || n.Decode(&b) != nil {
		p.Errorf(n, "true or false is expected")
	}
	return b
}

// strings returns a sequence of strings.
func (p *Parser) strings(n *yaml.Node) []string {
	if n.Kind != yaml.SequenceNode {
		p.Errorf(n, "a list is expected")
		return nil
	}
	var out []string
	for _, c := range n.Content {
		out = append(out, p.Str(c))
	}
	return out
}

// Enums parses the section "enums".
func (p *Parser) Enums(n *yaml.Node) []*Enum {
	var out []*Enum
	p.Each(n, "enums", func(k, v *yaml.Node) {
		e := &Enum{Name: p.Name(k), Pos: p.Pos(k)}
		p.Mapping(v, "enum "+k.Value, map[string]func(*yaml.Node){
			"doc": func(n *yaml.Node) { e.Doc = p.Str(n) },
			"values": func(n *yaml.Node) {
				p.Each(n, "values of "+k.Value, func(k, v *yaml.Node) {
					e.Values = append(e.Values, EnumValue{Name: p.Name(k), Doc: p.Str(v)})
				})
			},
		})
		if len(e.Values) == 0 {
			p.Errorf(k, "enum %s has no values", e.Name)
		}
		out = append(out, e)
	})
	return out
}

// Components parses the section "components".
func (p *Parser) Components(n *yaml.Node) []*Component {
	var out []*Component
	p.Each(n, "components", func(k, v *yaml.Node) {
		c := &Component{Name: p.Name(k), Pos: p.Pos(k)}
		p.Mapping(v, "component "+k.Value, map[string]func(*yaml.Node){
			"doc":    func(n *yaml.Node) { c.Doc = p.Str(n) },
			"fields": func(n *yaml.Node) { c.Fields = p.fields(n, c.Name) },
		})
		for _, f := range c.Fields {
			if f.Index != NoIndex || f.Unique != NotUnique || f.OnDelete != "" {
				p.errs = append(p.errs, fmt.Errorf("%s: %s.%s: index, unique and on_delete are for fields of spec and status; the store does not look into components", f.Pos, c.Name, f.Name))
			}
		}
		out = append(out, c)
	})
	return out
}

func (p *Parser) kinds(n *yaml.Node) []*Kind {
	var out []*Kind
	p.Each(n, "kinds", func(k, v *yaml.Node) {
		d := &Kind{Name: p.Name(k), Pos: p.Pos(k)}
		var indexes *yaml.Node
		p.Mapping(v, "kind "+k.Value, map[string]func(*yaml.Node){
			"plural":        func(n *yaml.Node) { d.Plural = p.Name(n) },
			"prefix":        func(n *yaml.Node) { d.Prefix = p.Name(n) },
			"scope":         func(n *yaml.Node) { d.Scope = p.OneOf(n, "project", "cluster") },
			"short":         func(n *yaml.Node) { d.Short = p.strings(n) },
			"doc":           func(n *yaml.Node) { d.Doc = p.Str(n) },
			"name_required": func(n *yaml.Node) { d.NameRequired = p.Bool(n) },
			"spec":          func(n *yaml.Node) { d.Spec = p.entityFields(n, d.Name+".spec") },
			"status":        func(n *yaml.Node) { d.Status = p.entityFields(n, d.Name+".status") },
			"columns":       func(n *yaml.Node) { d.Columns = p.columns(n) },
			"indexes":       func(n *yaml.Node) { indexes = n },
		})
		if indexes != nil {
			d.Indexes = p.composites(indexes, d)
		}
		for what, s := range map[string]string{"plural": d.Plural, "prefix": d.Prefix, "scope": d.Scope, "doc": d.Doc} {
			if s == "" {
				p.Errorf(k, "kind %s: %s is missing", d.Name, what)
			}
		}
		out = append(out, d)
	})
	return out
}

// composites parses the composite indexes of a kind whose fields are known.
func (p *Parser) composites(n *yaml.Node, d *Kind) []*Composite {
	fields := map[string]*Field{}
	var paths []string
	for half, fs := range map[string][]*Field{"spec.": d.Spec, "status.": d.Status} {
		for _, f := range fs {
			fields[half+f.Name] = f
			paths = append(paths, half+f.Name)
		}
	}
	var out []*Composite
	p.Each(n, "indexes", func(k, v *yaml.Node) {
		x := &Composite{Name: p.Name(k), Pos: p.Pos(k)}
		for _, s := range p.strings(v) {
			path, desc := strings.CutPrefix(s, "-")
			f := fields[path]
			switch {
			case f == nil:
				p.Errorf(v, "index %s of %s: there is no %s%s", x.Name, d.Name, path, Suggest(path, paths))
				continue
			case !indexable(f) || f.Type == List:
				p.Errorf(v, "index %s of %s: %s of type %s cannot be a part", x.Name, d.Name, path, f.Describe())
			}
			x.Parts = append(x.Parts, Part{Path: path, Field: f, Desc: desc})
		}
		if len(x.Parts) < 2 {
			p.Errorf(k, "index %s of %s: two attributes or more are expected; for one use index: range", x.Name, d.Name)
		}
		out = append(out, x)
	})
	return out
}

func (p *Parser) entityFields(n *yaml.Node, owner string) []*Field {
	fs := p.fields(n, owner)
	for _, f := range fs {
		switch {
		case f.Base() == Ref && f.OnDelete == "":
			p.errs = append(p.errs, fmt.Errorf("%s: %s.%s: on_delete is missing (restrict, cascade, clear)", f.Pos, owner, f.Name))
		case f.Required && f.OnDelete == "clear":
			p.errs = append(p.errs, fmt.Errorf("%s: %s.%s: required and on_delete: clear exclude each other: what refers to a deleted entity would be invalid", f.Pos, owner, f.Name))
		case f.Index != NoIndex && !indexable(f):
			p.errs = append(p.errs, fmt.Errorf("%s: %s.%s: type %s cannot be indexed", f.Pos, owner, f.Name, f.Describe()))
		case f.Index == IndexPrefix && f.Base() != String:
			p.errs = append(p.errs, fmt.Errorf("%s: %s.%s: index: prefix is for strings", f.Pos, owner, f.Name))
		case f.Unique != NotUnique && (!indexable(f) || f.Type == List):
			p.errs = append(p.errs, fmt.Errorf("%s: %s.%s: type %s cannot be unique", f.Pos, owner, f.Name, f.Describe()))
		}
	}
	return fs
}

func indexable(f *Field) bool {
	if f.Type == Map {
		return false
	}
	switch f.Base() {
	case String, Int, Bool, Time, Duration, EnumType, Ref:
		return true
	}
	return false
}

func (p *Parser) columns(n *yaml.Node) []*Column {
	if n.Kind != yaml.SequenceNode {
		p.Errorf(n, "columns: a list is expected")
		return nil
	}
	var out []*Column
	for _, m := range n.Content {
		c := &Column{Pos: p.Pos(m)}
		p.Mapping(m, "column", map[string]func(*yaml.Node){
			"title":  func(n *yaml.Node) { c.Title = p.Str(n) },
			"path":   func(n *yaml.Node) { c.Path = p.Str(n) },
			"format": func(n *yaml.Node) { c.Format = p.OneOf(n, "age", "bytes", "millis") },
			"wide":   func(n *yaml.Node) { c.Wide = p.Bool(n) },
		})
		if c.Title == "" || c.Path == "" {
			p.Errorf(m, "column: title and path are required")
		}
		out = append(out, c)
	}
	return out
}

// fields parses a mapping of field names to fields; owner is for messages.
func (p *Parser) fields(n *yaml.Node, owner string) []*Field {
	var out []*Field
	p.Each(n, owner, func(k, v *yaml.Node) {
		what := k.Value
		if owner != "" {
			what = owner + "." + k.Value
		}
		out = append(out, p.field(k, v, what))
	})
	return out
}

func (p *Parser) field(k, v *yaml.Node, what string) *Field {
	f := &Field{Name: p.Name(k), Pos: p.Pos(k)}
	var def, lo, hi *yaml.Node
	p.Mapping(v, what, map[string]func(*yaml.Node){
		"type":      func(n *yaml.Node) { f.Type = Type(p.OneOf(n, allTypes...)) },
		"of":        func(n *yaml.Node) { f.Elem = Type(p.OneOf(n, allTypes...)) },
		"enum":      func(n *yaml.Node) { f.Enum = p.TypeName(n) },
		"component": func(n *yaml.Node) { f.Component = p.TypeName(n) },
		"kind":      func(n *yaml.Node) { f.Kind = p.Name(n) },
		"required":  func(n *yaml.Node) { f.Required = p.Bool(n) },
		"default":   func(n *yaml.Node) { def = n },
		"min":       func(n *yaml.Node) { lo = n },
		"max":       func(n *yaml.Node) { hi = n },
		"pattern":   func(n *yaml.Node) { f.Pattern, _ = p.literal(n, String, what+": pattern").(string) },
		"index": func(n *yaml.Node) {
			switch n.Value {
			case "true":
				f.Index = IndexEqual
			case "prefix", "range":
				f.Index = Index(n.Value)
			default:
				p.Errorf(n, "%s: index is true, prefix or range", what)
			}
		},
		"unique": func(n *yaml.Node) {
			switch n.Value {
			case "true":
				f.Unique = UniqueProject
			case "global":
				f.Unique = UniqueGlobal
			default:
				p.Errorf(n, "%s: unique is true or global", what)
			}
		},
		"on_delete": func(n *yaml.Node) { f.OnDelete = p.OneOf(n, "restrict", "cascade", "clear") },
		"unit":      func(n *yaml.Node) { f.Unit = p.Str(n) },
		"doc":       func(n *yaml.Node) { f.Doc = p.Str(n) },
	})
	if f.Type == "" {
		p.Errorf(k, "%s: type is missing", what)
		return f
	}
	if f.Base() == Record && !p.Records {
		p.Errorf(k, "%s: type record is for messages of RPC", what)
	}
	p.shape(k, f, what)
	if def != nil {
		f.Default = p.literal(def, f.Type, what+": default")
	}
	if lo != nil {
		f.Min = p.bound(lo, f, what+": min")
	}
	if hi != nil {
		f.Max = p.bound(hi, f, what+": max")
	}
	if f.Pattern != "" {
		if f.Type != String {
			p.Errorf(k, "%s: pattern is for strings", what)
		}
		if _, err := regexp.Compile(f.Pattern); err != nil {
			p.Errorf(k, "%s: pattern: %v", what, err)
		}
	}
	return f
}

// shape checks that the keys of a field fit together.
func (p *Parser) shape(k *yaml.Node, f *Field, what string) {
	container := f.Type == List || f.Type == Map
	switch {
	case container && f.Elem == untypedOf:
		p.Errorf(k, "%s: a %s needs of: its element type", what, f.Type)
	case !container && f.Elem != untypedOf:
		p.Errorf(k, "%s: of is for list and map", what)
	case f.Elem == List || f.Elem == Map:
		p.Errorf(k, "%s: a %s of %s is not supported; put the inner one into a component", what, f.Type, f.Elem)
	}
	for _, c := range []struct {
		t    Type
		key  string
		name string
	}{{EnumType, "enum", f.Enum}, {Struct, "component", f.Component}, {Ref, "kind", f.Kind}} {
		if f.Base() == c.t && c.name == "" {
			p.Errorf(k, "%s: %s is missing", what, c.key)
		}
		if f.Base() != c.t && c.name != "" {
			p.Errorf(k, "%s: %s is for type %s", what, c.key, c.t)
		}
	}
	if f.OnDelete != "" && f.Base() != Ref {
		p.Errorf(k, "%s: on_delete is for refs", what)
	}
}

// literal parses the scalar n as a value of type t. "$name" is the value of a
// constant.
func (p *Parser) literal(n *yaml.Node, t Type, what string) any {
	s := p.Str(n)
	if name, ok := strings.CutPrefix(s, "$"); ok && name != "" {
		return p.constant(n, name, t, what)
	}
	switch t {
	case String, EnumType:
		return s
	case Int:
		if i, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64); err == nil {
			return i
		}
	case Float:
		if x, err := strconv.ParseFloat(s, 64); err == nil {
			return x
		}
	case Bool:
		if s == "true" || s == "false" {
			return s == "true"
		}
	case Duration:
		if d, err := time.ParseDuration(s); err == nil {
			return d
		}
	default:
		p.Errorf(n, "%s: not possible for type %s", what, t)
		return nil
	}
	p.Errorf(n, "%s: %q is not of type %s", what, s, t)
	return nil
}

func (p *Parser) bound(n *yaml.Node, f *Field, what string) any {
	switch f.Type {
	case Int, Float, Duration:
		return p.literal(n, f.Type, what)
	case String, Bytes, List, Map:
		v := p.literal(n, Int, what)
		if i, ok := v.(int64); ok && i < 0 {
			p.Errorf(n, "%s: a length cannot be negative", what)
		}
		return v
	}
	p.Errorf(n, "%s: not possible for type %s", what, f.Type)
	return nil
}
