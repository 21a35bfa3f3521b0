package gogen

import (
	"strings"

	"miren.dev/runtime/pkg/schema/lang"
)

// Constants emits a group of constants below a title.
func (f *File) Constants(title string, list []*lang.Constant) {
	if len(list) == 0 {
		return
	}
	f.P("// %s", title)
	f.P("const (")
	for _, c := range list {
		doc := strings.TrimSpace(c.Doc)
		if c.Unit != "" {
			doc += " (unit: " + c.Unit + ")"
		}
		f.Comment(GoName(c.Name) + ": " + doc)
		f.P("%s = %s", GoName(c.Name), f.literal(c.Pos, c.Name, c.Value))
	}
	f.P(")\n")
}
