package main

import (
	"fmt"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/schema/gogen"
	"miren.dev/runtime/pkg/schema/lang"
)

const (
	schemaPath = gogen.Module + "/pkg/schema"
	idPath     = gogen.Module + "/api/id"
)

// domain renders api/<domain>/schema.gen.go.
func domain(f *lang.File, set *lang.Set) ([]byte, error) {
	if err := collisions(f); err != nil {
		return nil, err
	}
	if f.Doc == "" {
		return nil, fmt.Errorf("%s: doc is missing: say what the domain is; it becomes the comment of the package", f.Path)
	}
	g := gogen.New(name, f.Domain, f.Domain, set)
	g.PackageDoc(gogen.PackageDocOf(f.Domain, f.Doc))
	g.Constants("Limits and defaults.", f.Constants)
	if len(f.Kinds) > 0 {
		g.P("// Names of the kinds.\nconst (")
		for _, k := range f.Kinds {
			g.P("Kind%s = %q", gogen.GoName(k.Name), k.Name)
		}
		g.P(")\n")
		g.P("// Kinds lists the kinds of this domain.")
		g.P("var Kinds = []*%s.Kind{", g.Import(schemaPath))
		for _, k := range f.Kinds {
			g.P("%sKind,", gogen.GoName(k.Name))
		}
		g.P("}\n")
	}
	for _, e := range f.Enums {
		g.Enum(e)
	}
	for _, c := range f.Components {
		g.Struct(gogen.GoName(c.Name), c.Doc, c.Fields)
	}
	for _, k := range f.Kinds {
		if err := kind(g, set, k); err != nil {
			return nil, err
		}
	}
	return g.Bytes()
}

// collisions reports Go names that would be declared twice.
func collisions(f *lang.File) error {
	seen := map[string]string{"Kinds": "the list of kinds"}
	add := func(pos lang.Pos, goName, what string) error {
		if old, ok := seen[goName]; ok {
			return fmt.Errorf("%s: %s would be %s in Go, as is %s: rename one of them", pos, what, goName, old)
		}
		seen[goName] = what
		return nil
	}
	for _, c := range f.Constants {
		if err := add(c.Pos, gogen.GoName(c.Name), "constant "+c.Name); err != nil {
			return err
		}
	}
	for _, k := range f.Kinds {
		n := gogen.GoName(k.Name)
		names := []string{n, n + "Spec", n + "Status", n + "Kind", "New" + n, "Kind" + n}
		for _, x := range k.Indexes {
			names = append(names, n+"Index"+gogen.GoName(x.Name))
		}
		for _, s := range names {
			if err := add(k.Pos, s, "kind "+k.Name); err != nil {
				return err
			}
		}
	}
	for _, c := range f.Components {
		if err := add(c.Pos, gogen.GoName(c.Name), "component "+c.Name); err != nil {
			return err
		}
	}
	for _, e := range f.Enums {
		if err := add(e.Pos, gogen.GoName(e.Name), "enum "+e.Name); err != nil {
			return err
		}
		for _, v := range e.Values {
			if err := add(e.Pos, gogen.GoName(e.Name)+gogen.GoName(v.Name), "value "+v.Name+" of enum "+e.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func kind(g *gogen.File, set *lang.Set, k *lang.Kind) error {
	n, s, ids := gogen.GoName(k.Name), g.Import(schemaPath), g.Import(idPath)
	g.Comment(n + ": " + k.Doc)
	g.P("type %s struct {\n%s.Meta\nSpec %sSpec `json:\"spec\"`\nStatus %sStatus `json:\"status\"`\n}\n", n, s, n, n)
	g.Struct(n+"Spec", "what is wanted of a "+k.Name+".", k.Spec)
	g.Struct(n+"Status", "what is known of a "+k.Name+".", k.Status)
	attrs(g, k)
	for _, x := range k.Indexes {
		composite(g, k, x)
	}

	g.P("// New%s returns a %s with every default applied.", n, k.Name)
	g.P("func New%s() *%s {\no := new(%s)", n, n, n)
	if g.HasDefaults(k.Spec) {
		g.P("o.Spec.SetDefaults()")
	}
	if g.HasDefaults(k.Status) {
		g.P("o.Status.SetDefaults()")
	}
	g.P("return o\n}\n")
	g.P("// GetID returns the typed id.\nfunc (o *%s) GetID() %s.%s { return %s.%s(o.ID) }\n", n, ids, n, ids, n)
	g.P("// EntityKind returns %sKind.\nfunc (o *%s) EntityKind() *%s.Kind { return %sKind }\n", n, n, s, n)
	g.P("// SpecPtr returns &o.Spec.\nfunc (o *%s) SpecPtr() any { return &o.Spec }\n", n)
	g.P("// StatusPtr returns &o.Status.\nfunc (o *%s) StatusPtr() any { return &o.Status }\n", n)
	g.P("// ValidateFields checks spec and status.")
	g.P("func (o *%s) ValidateFields(v *%s.Validator) {\nv.In(\"spec\", &o.Spec)\nv.In(\"status\", &o.Status)\n}\n", n, s)
	g.P("// MarshalJSON renders o with its kind; secrets are redacted.")
	g.P("func (o %s) MarshalJSON() ([]byte, error) { return %s.EncodeObjectJSON(&o) }\n", n, s)
	g.P("// UnmarshalJSON decodes o strictly; missing fields get their defaults.")
	g.P("func (o *%s) UnmarshalJSON(b []byte) error { return %s.DecodeObjectJSON(b, o) }\n", n, s)
	if err := extract(g, k); err != nil {
		return err
	}
	return descriptor(g, set, k)
}

// attrs emits a constant per attribute: SandboxAttrPool = "spec.pool". A name
// that spec and status share is StatusX for the status.
func attrs(g *gogen.File, k *lang.Kind) {
	if len(k.Spec)+len(k.Status) == 0 {
		return
	}
	n := gogen.GoName(k.Name)
	g.P("// Attributes of %s.\nconst (", n)
	inSpec := map[string]bool{}
	for _, f := range k.Spec {
		inSpec[f.Name] = true
		g.P("%sAttr%s = %q", n, gogen.GoName(f.Name), "spec."+f.Name)
	}
	for _, f := range k.Status {
		name := gogen.GoName(f.Name)
		if inSpec[f.Name] {
			name = "Status" + name
		}
		g.P("%sAttr%s = %q", n, name, "status."+f.Name)
	}
	g.P(")\n")
}

var encoders = map[lang.Type]string{
	lang.String:   "EncodeIndexString(%s)",
	lang.EnumType: "EncodeIndexString(string(%s))",
	lang.Ref:      "EncodeIndexString(string(%s))",
	lang.Int:      "EncodeIndexInt(%s)",
	lang.Bool:     "EncodeIndexBool(%s)",
	lang.Time:     "EncodeIndexTime(%s)",
	lang.Duration: "EncodeIndexDuration(%s)",
}

// composite emits the variable of a composite index.
func composite(g *gogen.File, k *lang.Kind, x *lang.Composite) {
	n, s := gogen.GoName(k.Name), g.Import(schemaPath)
	var order []string
	for _, p := range x.Parts {
		path := p.Path
		if p.Desc {
			path += " descending"
		}
		order = append(order, path)
	}
	g.P("// %sIndex%s orders the %s by %s.", n, gogen.GoName(x.Name), k.Plural, strings.Join(order, ", "))
	g.P("var %sIndex%s = &%s.Index{Name: %q, Parts: []%s.IndexPart{", n, gogen.GoName(x.Name), s, x.Name, s)
	for _, p := range x.Parts {
		desc := ""
		if p.Desc {
			desc = ", Desc: true"
		}
		g.P("{Attr: %q%s},", p.Path, desc)
	}
	g.P("}}\n")
}

// addComposites emits what Extract does for the composite indexes.
func addComposites(g *gogen.File, k *lang.Kind) {
	n, s := gogen.GoName(k.Name), g.Import(schemaPath)
	for _, x := range k.Indexes {
		g.P("{\nvar parts [%d][]byte", len(x.Parts))
		for i, p := range x.Parts {
			half, _, _ := strings.Cut(p.Path, ".")
			field := "o." + gogen.GoName(half) + "." + gogen.GoName(p.Field.Name)
			val, guard := value(p.Field, field)
			set := fmt.Sprintf("parts[%d] = %s.%s", i, s, fmt.Sprintf(encoders[p.Field.Base()], val))
			if guard != "" {
				set = guard + " {\n" + set + "\n}"
			}
			g.P("%s", set)
		}
		g.P("e.AddComposite(%sIndex%s, parts[:]...)\n}", n, gogen.GoName(x.Name))
	}
}

// value returns the expression of the value of a field that is no list or map,
// x, and the statement that guards it where it may be absent.
func value(f *lang.Field, x string) (val, guard string) {
	switch {
	case gogen.IsPointer(f):
		return "*" + x, "if " + x + " != nil"
	case (f.Base() == lang.String || f.Base() == lang.EnumType || f.Base() == lang.Ref) && f.Default == nil:
		return x, "if " + x + ` != ""`
	}
	return x, ""
}

func extract(g *gogen.File, k *lang.Kind) error {
	n, s := gogen.GoName(k.Name), g.Import(schemaPath)
	g.P("// Extract adds what the store indexes or enforces of o.")
	g.P("func (o *%s) Extract(e *%s.Extracted) {", n, s)
	for _, part := range []struct {
		path, goPath string
		fields       []*lang.Field
	}{{"spec.", "o.Spec.", k.Spec}, {"status.", "o.Status.", k.Status}} {
		for _, f := range part.fields {
			if f.Index == lang.NoIndex && f.Unique == lang.NotUnique && f.Base() != lang.Ref {
				continue
			}
			attr, x := strconv.Quote(part.path+f.Name), part.goPath+gogen.GoName(f.Name)
			val, guard := x, ""
			switch {
			case f.Type == lang.List:
				val, guard = "x", "for _, x := range "+x
			case f.Type == lang.Map:
				val, guard = "x", fmt.Sprintf("for _, key := range %s.Keys(%s)", s, x)
			default:
				val, guard = value(f, x)
			}
			var lines []string
			if f.Type == lang.Map {
				lines = append(lines, "x := "+x+"[key]")
			}
			if f.Index != lang.NoIndex || f.Unique != lang.NotUnique {
				enc := s + "." + fmt.Sprintf(encoders[f.Base()], val)
				if f.Index != lang.NoIndex {
					lines = append(lines, fmt.Sprintf("e.AddIndex(%s, %s)", attr, enc))
				}
				if f.Unique != lang.NotUnique {
					lines = append(lines, fmt.Sprintf("e.AddUnique(%s, %s, %t)", attr, enc, f.Unique == lang.UniqueGlobal))
				}
			}
			if f.Base() == lang.Ref {
				lines = append(lines, fmt.Sprintf("e.AddRef(%s, %q, %s.ID(%s), %s.%s)", attr, f.Kind, s, val, s, gogen.GoName(f.OnDelete)))
			}
			if guard != "" {
				g.P("%s {\n%s\n}", guard, strings.Join(lines, "\n"))
			} else {
				g.P("%s", strings.Join(lines, "\n"))
			}
		}
	}
	addComposites(g, k)
	g.P("}\n")
	return nil
}

func descriptor(g *gogen.File, set *lang.Set, k *lang.Kind) error {
	n, s := gogen.GoName(k.Name), g.Import(schemaPath)
	g.P("// %sKind describes the kind %s.", n, k.Name)
	g.P("var %sKind = &%s.Kind{", n, s)
	g.P("Name: %q, Plural: %q, Prefix: %q, Domain: %q,", k.Name, k.Plural, k.Prefix, k.Domain)
	g.P("Doc: %q,", k.Doc)
	g.P("Scope: %s.Scope%s,", s, gogen.GoName(k.Scope))
	if len(k.Short) > 0 {
		g.P("Short: %#v,", k.Short)
	}
	if k.NameRequired {
		g.P("NameRequired: true,")
	}
	g.P("New: func() %s.Object { return New%s() },", s, n)
	g.P("Decode: func(r *%s.Record) (%s.Object, error) {\no := New%s()\nif err := %s.DecodeRecord(r, o); err != nil {\nreturn nil, err\n}\nreturn o, nil\n},", s, s, n, s)
	g.P("Encode: %s.EncodeObject,", s)
	g.P("Extract: func(r *%s.Record) (%s.Extracted, error) { return %s.ExtractRecord(r, New%s()) },", s, s, s, n)
	g.P("Attrs: []%s.Attr{", s)
	for _, f := range k.Spec {
		attr(g, set, k, "spec.", f)
	}
	for _, f := range k.Status {
		attr(g, set, k, "status.", f)
	}
	g.P("},")
	if len(k.Indexes) > 0 {
		var names []string
		for _, x := range k.Indexes {
			names = append(names, n+"Index"+gogen.GoName(x.Name))
		}
		g.P("Indexes: []*%s.Index{%s},", s, strings.Join(names, ", "))
	}
	if len(k.Columns) > 0 {
		g.P("Columns: []%s.Column{", s)
		for _, c := range k.Columns {
			if err := column(g, set, k, c); err != nil {
				return err
			}
		}
		g.P("},")
	}
	g.P("}\n")
	return nil
}

func attr(g *gogen.File, set *lang.Set, k *lang.Kind, prefix string, f *lang.Field) {
	line := fmt.Sprintf("{Path: %q, Number: %d, Type: %q, Doc: %q", prefix+f.Name, f.Number, f.Describe(), f.Doc)
	if f.Required {
		line += ", Required: true"
	}
	if f.Default != nil {
		line += fmt.Sprintf(", Default: %q", fmt.Sprint(f.Default))
	}
	if f.Index != lang.NoIndex {
		line += ", Indexed: true"
	}
	if f.Unique != lang.NotUnique {
		line += ", Unique: true"
	}
	if f.Base() == lang.EnumType {
		if e := set.Enum(k.Domain, f.Enum); e != nil {
			var vals []string
			for _, v := range e.Values {
				vals = append(vals, v.Name)
			}
			line += fmt.Sprintf(", Choices: %#v", vals)
		}
	}
	g.P("%s},", line)
}
