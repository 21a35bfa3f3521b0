package gogen

import (
	"strings"

	"miren.dev/runtime/pkg/schema/lang"
)

// Enum emits a string type with a constant per value, Valid and Choices.
func (f *File) Enum(e *lang.Enum) {
	name := GoName(e.Name)
	f.Comment(name + " is an enum. " + e.Doc)
	f.P("type %s string\n", name)
	f.P("// Values of %s.", name)
	f.P("const (")
	for _, v := range e.Values {
		f.P("%s%s %s = %q // %s", name, GoName(v.Name), name, v.Name, strings.Join(strings.Fields(v.Doc), " "))
	}
	f.P(")\n")
	f.P("// Valid reports whether e is one of the values.")
	f.P("func (e %s) Valid() bool {\nswitch e {", name)
	var consts, quoted []string
	for _, v := range e.Values {
		consts = append(consts, name+GoName(v.Name))
		quoted = append(quoted, `"`+v.Name+`"`)
	}
	f.P("case %s:\nreturn true\n}\nreturn false\n}\n", strings.Join(consts, ",\n"))
	f.P("// Choices lists the values in the order of their declaration.")
	f.P("func (%s) Choices() []string { return []string{%s} }\n", name, strings.Join(quoted, ", "))
}
