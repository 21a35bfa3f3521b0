package main

import (
	"fmt"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/schema/gogen"
	"miren.dev/runtime/pkg/schema/lang"
)

// metaColumns are the fields of schema.Meta that a column may show.
var metaColumns = map[string]string{
	"meta.name": "o.Name", "meta.project": "o.Project", "meta.lease": "o.Lease",
	"meta.created_at": "o.CreatedAt", "meta.updated_at": "o.UpdatedAt",
}

// column emits one column; it resolves and checks the path now, not at run
// time.
func column(g *gogen.File, set *lang.Set, k *lang.Kind, c *lang.Column) error {
	n, s := gogen.GoName(k.Name), g.Import("miren.dev/runtime/pkg/schema")
	expr, typ := metaColumns[c.Path], lang.Time
	var guards []string
	if expr == "" {
		var err error
		if expr, typ, guards, err = resolve(set, k, c); err != nil {
			return err
		}
	} else if !strings.HasSuffix(c.Path, "_at") {
		typ = lang.String
	}
	now := "_"
	var cell string
	switch {
	case c.Format == "":
		cell = fmt.Sprintf("%s.Cell(%s)", s, strings.TrimPrefix(expr, "*"))
	case c.Format == "age" && typ == lang.Time:
		now = "now"
		cell = fmt.Sprintf("%s.CellAge(%s, now)", s, expr)
	case c.Format == "bytes" && typ == lang.Int:
		cell = fmt.Sprintf("%s.CellBytes(%s)", s, expr)
	case c.Format == "millis" && typ == lang.Int:
		cell = fmt.Sprintf("%s.CellMillis(%s)", s, expr)
	default:
		return fmt.Errorf("%s: column %s: format %s is not for type %s", c.Pos, c.Title, c.Format, typ)
	}
	wide := ""
	if c.Wide {
		wide = ", Wide: true"
	}
	g.P("{Title: %q%s, Value: func(obj %s.Object, %s %s.Time) string {", c.Title, wide, s, now, g.Import("time"))
	g.P("o := obj.(*%s)", n)
	if len(guards) > 0 {
		g.P("if %s {\nreturn \"\"\n}", strings.Join(guards, " || "))
	}
	g.P("return %s\n}},", cell)
	return nil
}

// resolve finds the Go expression of a path in spec or status, its type, and
// the conditions under which it is absent.
func resolve(set *lang.Set, k *lang.Kind, c *lang.Column) (expr string, typ lang.Type, guards []string, err error) {
	parts := strings.Split(c.Path, ".")
	var fields []*lang.Field
	switch parts[0] {
	case "spec":
		fields, expr = k.Spec, "o.Spec"
	case "status":
		fields, expr = k.Status, "o.Status"
	default:
		return "", "", nil, fmt.Errorf("%s: column %s: path %q begins with none of spec, status, meta", c.Pos, c.Title, c.Path)
	}
	if len(parts) == 1 {
		return "", "", nil, fmt.Errorf("%s: column %s: path %q names no field", c.Pos, c.Title, c.Path)
	}
	domain := k.Domain
	for i, p := range parts[1:] {
		j := slices.IndexFunc(fields, func(f *lang.Field) bool { return f.Name == p })
		if j < 0 {
			var known []string
			for _, f := range fields {
				known = append(known, f.Name)
			}
			return "", "", nil, fmt.Errorf("%s: column %s: %q of path %q does not exist%s", c.Pos, c.Title, p, c.Path, lang.Suggest(p, known))
		}
		f := fields[j]
		expr += "." + gogen.GoName(f.Name)
		if gogen.IsPointer(f) {
			guards = append(guards, expr+" == nil")
		}
		if i == len(parts)-2 {
			if gogen.IsPointer(f) {
				expr = "*" + expr
			}
			if f.Base() == lang.Struct || f.Type == lang.Map {
				return "", "", nil, fmt.Errorf("%s: column %s: %s is a %s, which a column cannot show", c.Pos, c.Title, c.Path, f.Describe())
			}
			return expr, f.Type, guards, nil
		}
		comp := set.Component(domain, f.Component)
		if f.Type != lang.Struct || comp == nil {
			return "", "", nil, fmt.Errorf("%s: column %s: %s has no fields", c.Pos, c.Title, expr)
		}
		fields, domain = comp.Fields, comp.Domain
	}
	return expr, typ, guards, nil
}
