package schema

import (
	"reflect"
	"strings"
	"sync"
)

// jsonField is one field of a struct as JSON shows it.
type jsonField struct {
	name     string
	index    []int
	omit     bool
	required bool
}

// defaulter is implemented by generated structs with defaults.
type defaulter interface{ SetDefaults() }

var structs sync.Map // reflect.Type -> []jsonField

// jsonFields lists the fields of the struct type t by their json tags, those
// of embedded structs without a tag among them.
func jsonFields(t reflect.Type) []jsonField {
	if fs, ok := structs.Load(t); ok {
		return fs.([]jsonField)
	}
	var out []jsonField
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		name, opts, _ := strings.Cut(tag, ",")
		if f.Anonymous && !tagged && f.Type.Kind() == reflect.Struct {
			for _, in := range jsonFields(f.Type) {
				in.index = append([]int{i}, in.index...)
				out = append(out, in)
			}
			continue
		}
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		out = append(out, jsonField{
			name: name, index: []int{i},
			omit:     strings.Contains(opts, "omitempty"),
			required: f.Tag.Get("schema") == "required",
		})
	}
	structs.Store(t, out)
	return out
}
