package lang

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Constant is a named limit or default. Fields of any file refer to it as
// "$name" or "$domain.name" in default, min, max and pattern, and Go code uses
// the constant that is generated from it, so that its value is written once.
type Constant struct {
	Domain string
	Name   string
	Type   Type // String, Int, Float or Duration
	Value  any  // string, int64, float64, time.Duration
	Unit   string
	Doc    string
	// Export lists packages below api ("pkg/appconfig") that get the constant
	// as well, because they must not import api.
	Export []string
	Pos    Pos
}

// Constants holds the constants of several domains, by "domain.name".
type Constants map[string]*Constant

// Add adds the constants of a file.
func (c Constants) Add(list []*Constant) {
	for _, x := range list {
		c[x.Domain+"."+x.Name] = x
	}
}

// constants parses the section "constants" of a file of domain.
func (p *Parser) constants(n *yaml.Node, domain string) []*Constant {
	var out []*Constant
	p.Each(n, "constants", func(k, v *yaml.Node) {
		c := &Constant{Domain: domain, Name: p.Name(k), Pos: p.Pos(k)}
		what := "constant " + k.Value
		var value *yaml.Node
		p.Mapping(v, what, map[string]func(*yaml.Node){
			"type": func(n *yaml.Node) {
				c.Type = Type(p.OneOf(n, string(String), string(Int), string(Float), string(Duration)))
			},
			"value": func(n *yaml.Node) { value = n },
			"unit":  func(n *yaml.Node) { c.Unit = p.Str(n) },
			"doc":   func(n *yaml.Node) { c.Doc = p.Str(n) },
			"export": func(n *yaml.Node) {
				c.Export = p.strings(n)
				for _, e := range c.Export {
					if !strings.HasPrefix(e, "pkg/") {
						p.Errorf(n, "%s: export: %q is not a package below pkg/; others import api", what, e)
					}
				}
			},
		})
		switch {
		case c.Type == "" || value == nil || c.Doc == "":
			p.Errorf(k, "%s: type, value and doc are required", what)
		case strings.HasPrefix(value.Value, "$"):
			p.Errorf(value, "%s: its value must be written out, not %q", what, value.Value)
		default:
			c.Value = p.literal(value, c.Type, what+": value")
		}
		out = append(out, c)
	})
	return out
}

// constant returns the value of the constant that n names, which must be of type t.
func (p *Parser) constant(n *yaml.Node, name string, t Type, what string) any {
	c := p.Constants[qualify(p.Domain, name)]
	if c == nil {
		var known []string
		for q := range p.Constants {
			known = append(known, q, strings.TrimPrefix(q, p.Domain+"."))
		}
		p.Errorf(n, "%s: constant %q does not exist%s", what, name, Suggest(name, known))
		return nil
	}
	if c.Type != t {
		p.Errorf(n, "%s: constant %s is of type %s, not %s", what, name, c.Type, t)
		return nil
	}
	return c.Value
}

// declared returns the domain and the constants of a file, which the rest of
// every file may refer to. Mistakes are reported when the file is parsed.
func declared(path string, root *yaml.Node) (domain string, list []*Constant) {
	p := &Parser{File: path}
	var section *yaml.Node
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch root.Content[i].Value {
		case "domain":
			domain = root.Content[i+1].Value
		case "constants":
			section = root.Content[i+1]
		}
	}
	if section != nil {
		list = p.constants(section, domain)
	}
	return domain, list
}
