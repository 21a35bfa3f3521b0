package gogen

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/pkg/schema/lang"
)

// Struct emits the struct type name with the fields, its codec, defaults and
// validation. Every field must have its number.
func (f *File) Struct(name, doc string, fields []*lang.Field) {
	for _, fd := range fields {
		if fd.Number < 1 {
			f.errs = append(f.errs, fmt.Errorf("%s: field %s of %s has no number", fd.Pos, fd.Name, name))
		}
	}
	f.structType(name, doc, fields)
	if f.HasDefaults(fields) {
		f.defaults(name, fields)
		f.P("// UnmarshalCBOR decodes x; fields that are missing get their defaults.")
		f.P("func (x *%s) UnmarshalCBOR(b []byte) error {", name)
		f.P("type plain %s", name)
		f.P("*x = %s{}\nx.SetDefaults()", name)
		f.P("return %s.Unmarshal(b, (*plain)(x))\n}\n", f.Import(schemaPath))
	}
	f.P("// MarshalJSON renders x; durations are strings, secrets are redacted.")
	f.P("func (x %s) MarshalJSON() ([]byte, error) { return %s.EncodeJSON(&x) }\n", name, f.Import(schemaPath))
	f.P("// UnmarshalJSON decodes x; unknown fields are errors, missing ones get their defaults.")
	f.P("func (x *%s) UnmarshalJSON(b []byte) error { return %s.DecodeJSON(b, x) }\n", name, f.Import(schemaPath))
	f.validate(name, fields)
}

func (f *File) structType(name, doc string, fields []*lang.Field) {
	f.Comment(name + ": " + doc)
	f.P("type %s struct {", name)
	for _, fd := range fields {
		f.Comment(fieldDoc(fd))
		f.P("%s %s %s", GoName(fd.Name), f.goType(fd), tag(fd))
	}
	f.P("}\n")
}

// fieldDoc is the doc of a field, with the rules that its Go type does not
// show.
func fieldDoc(fd *lang.Field) string {
	doc := fd.Doc
	var notes []string
	if fd.Unit != "" {
		notes = append(notes, "unit: "+fd.Unit)
	}
	if fd.Default != nil {
		notes = append(notes, fmt.Sprintf("default %v", fd.Default))
	}
	if len(notes) > 0 {
		doc = strings.TrimSpace(doc + " (" + strings.Join(notes, "; ") + ")")
	}
	return doc
}

// HasDefaults reports whether any of the fields, or of a component that they
// hold by value, has a default.
func (f *File) HasDefaults(fields []*lang.Field) bool {
	return f.hasDefaults(f.domain, fields)
}

func (f *File) hasDefaults(domain string, fields []*lang.Field) bool {
	for _, fd := range fields {
		if fd.Default != nil {
			return true
		}
		if fd.Type == lang.Struct && fd.Required {
			if c := f.set.Component(domain, fd.Component); c != nil && f.hasDefaults(c.Domain, c.Fields) {
				return true
			}
		}
	}
	return false
}

func (f *File) defaults(name string, fields []*lang.Field) {
	f.P("// SetDefaults sets every field that has a default.")
	f.P("func (x *%s) SetDefaults() {", name)
	for _, fd := range fields {
		switch {
		case fd.Default != nil:
			f.P("x.%s = %s", GoName(fd.Name), f.fieldLiteral(fd, fd.Default))
		case fd.Type == lang.Struct && fd.Required:
			if c := f.set.Component(f.domain, fd.Component); c != nil && f.hasDefaults(c.Domain, c.Fields) {
				f.P("x.%s.SetDefaults()", GoName(fd.Name))
			}
		}
	}
	f.P("}\n")
}

// fieldLiteral renders a default or bound of the field as a Go expression.
func (f *File) fieldLiteral(fd *lang.Field, v any) string {
	if v, ok := v.(string); ok && fd.Base() == lang.EnumType {
		return f.baseType(fd) + GoName(v)
	}
	return f.literal(fd.Pos, fd.Name, v)
}

// literal renders the value of the literal at pos.
func (f *File) literal(pos lang.Pos, name string, v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(v)
	case bool:
		return strconv.FormatBool(v)
	case int64:
		if v == math.MinInt64 {
			return f.Import("math") + ".MinInt64"
		}
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case time.Duration:
		return f.duration(v)
	}
	f.errs = append(f.errs, fmt.Errorf("%s: %s: literal %v of type %T", pos, name, v, v))
	return "0"
}

func (f *File) duration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	pkg := f.Import("time")
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "Hour"}, {time.Minute, "Minute"}, {time.Second, "Second"}, {time.Millisecond, "Millisecond"}, {time.Microsecond, "Microsecond"}} {
		if d%u.unit == 0 {
			return fmt.Sprintf("%d * %s.%s", d/u.unit, pkg, u.name)
		}
	}
	return fmt.Sprintf("%d * %s.Nanosecond", int64(d), pkg)
}

func (f *File) validate(name string, fields []*lang.Field) {
	s := f.Import(schemaPath)
	for _, fd := range fields {
		if fd.Pattern != "" {
			f.P("var pattern%s%s = %s.MustCompile(%s)\n", name, GoName(fd.Name), f.Import("regexp"), strconv.Quote(fd.Pattern))
		}
	}
	f.P("// Validate reports every field that breaks its rules, as one error of class")
	f.P("// invalid_argument.")
	f.P("func (x *%s) Validate() error { return %s.Validate(x) }\n", name, s)
	f.P("// ValidateFields is Validate below the path that v is at.")
	f.P("func (x *%s) ValidateFields(v *%s.Validator) {", name, s)
	for _, fd := range fields {
		f.validateField(name, fd)
	}
	f.P("}\n")
}

func (f *File) validateField(owner string, fd *lang.Field) {
	x, n := "x."+GoName(fd.Name), strconv.Quote(fd.Name)
	if fd.Required {
		switch fd.Type {
		case lang.String, lang.EnumType, lang.Ref:
			f.P("v.Required(%s, %s != \"\")", n, x)
		case lang.List, lang.Map, lang.Bytes:
			f.P("v.Required(%s, len(%s) > 0)", n, x)
		case lang.Time:
			f.P("v.Required(%s, !%s.IsZero())", n, x)
		case lang.Secret:
			f.P("v.Required(%s, !%s.IsZero())", n, x)
		}
	}
	switch fd.Type {
	case lang.List, lang.Map:
		f.length(fd, n, "len("+x+")")
		f.elements(fd, n, x)
		return
	case lang.Bytes:
		f.length(fd, n, "len("+x+")")
		return
	}
	val := x
	var checks []string
	if IsPointer(fd) && fd.Type != lang.Struct {
		val = "*" + x
	}
	switch fd.Type {
	case lang.String:
		if fd.Min != nil {
			checks = append(checks, fmt.Sprintf("v.MinLen(%s, len(%s), %v)", n, val, fd.Min))
		}
		if fd.Max != nil {
			checks = append(checks, fmt.Sprintf("v.MaxLen(%s, len(%s), %v)", n, val, fd.Max))
		}
		if fd.Pattern != "" {
			checks = append(checks, fmt.Sprintf("v.Pattern(%s, %s, pattern%s%s)", n, val, owner, GoName(fd.Name)))
		}
	case lang.Int, lang.Float, lang.Duration:
		if fd.Min != nil {
			checks = append(checks, fmt.Sprintf("%s.CheckMin(v, %s, %s, %s)", f.Import(schemaPath), n, val, f.fieldLiteral(fd, fd.Min)))
		}
		if fd.Max != nil {
			checks = append(checks, fmt.Sprintf("%s.CheckMax(v, %s, %s, %s)", f.Import(schemaPath), n, val, f.fieldLiteral(fd, fd.Max)))
		}
	case lang.EnumType:
		checks = append(checks, fmt.Sprintf("%s.CheckEnum(v, %s, %s)", f.Import(schemaPath), n, val))
	case lang.Ref:
		checks = append(checks, fmt.Sprintf("v.Ref(%s, string(%s))", n, val))
	case lang.Struct:
		checks = append(checks, fmt.Sprintf("v.In(%s, %s)", n, ptrTo(fd, val)))
	case lang.Secret:
		checks = append(checks, fmt.Sprintf("v.Secret(%s, %s)", n, val))
	}
	if len(checks) == 0 {
		return
	}
	guard := ""
	switch {
	case IsPointer(fd):
		guard = x + " != nil"
	case fd.Type == lang.String && fd.Default == nil, fd.Type == lang.Ref, fd.Type == lang.EnumType && fd.Default == nil:
		guard = x + ` != ""` // absent values pass; Required reports them
	case fd.Type == lang.Secret:
		guard = "!" + x + ".IsZero()"
	}
	if guard != "" {
		f.P("if %s {\n%s\n}", guard, strings.Join(checks, "\n"))
		return
	}
	f.P("%s", strings.Join(checks, "\n"))
}

func ptrTo(fd *lang.Field, x string) string {
	if IsPointer(fd) {
		return x
	}
	return "&" + x
}

func (f *File) length(fd *lang.Field, n, length string) {
	if fd.Min != nil {
		guard := ""
		if !fd.Required {
			guard = fmt.Sprintf("if %s > 0 ", length)
		}
		if guard != "" {
			f.P("%s{\nv.MinLen(%s, %s, %v)\n}", guard, n, length, fd.Min)
		} else {
			f.P("v.MinLen(%s, %s, %v)", n, length, fd.Min)
		}
	}
	if fd.Max != nil {
		f.P("v.MaxLen(%s, %s, %v)", n, length, fd.Max)
	}
}

// elements validates those of a list or map.
func (f *File) elements(fd *lang.Field, n, x string) {
	s := f.Import(schemaPath)
	list := fd.Type == lang.List
	switch fd.Elem {
	case lang.Struct:
		if list {
			f.P("for i := range %s {\nv.InElem(%s, i, &%s[i])\n}", x, n, x)
		} else {
			f.P("for _, k := range %s.Keys(%s) {\ne := %s[k]\nv.InKey(%s, k, &e)\n}", s, x, x, n)
		}
	case lang.EnumType, lang.Ref, lang.Secret:
		call := map[lang.Type]string{
			lang.EnumType: s + ".CheckEnum(v, %s, e)",
			lang.Ref:      "v.Ref(%s, string(e))",
			lang.Secret:   "v.Secret(%s, e)",
		}[fd.Elem]
		if list {
			f.P("for i, e := range %s {\n%s\n}", x, fmt.Sprintf(call, s+".ElemName("+n+", i)"))
		} else {
			f.P("for _, k := range %s.Keys(%s) {\ne := %s[k]\n%s\n}", s, x, x, fmt.Sprintf(call, s+".KeyName("+n+", k)"))
		}
	}
	if !list {
		f.P("for k := range %s {\nv.MapKey(%s, k)\n}", x, n)
	}
}
