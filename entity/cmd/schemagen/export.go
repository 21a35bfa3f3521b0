package main

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"

	"miren.dev/runtime/pkg/schema/gogen"
	"miren.dev/runtime/pkg/schema/lang"
)

// exports renders <package>/schema.gen.go for each package below api that a
// constant is exported to.
func exports(set *lang.Set) ([]gogen.Output, error) {
	lists := map[string][]*lang.Constant{}
	for _, f := range set.Files {
		for _, c := range f.Constants {
			for _, dir := range c.Export {
				if i := slices.IndexFunc(lists[dir], func(o *lang.Constant) bool { return o.Name == c.Name }); i >= 0 {
					return nil, fmt.Errorf("%s: constant %s is exported to %s, as is the one at %s: rename one of them", c.Pos, c.Name, dir, lists[dir][i].Pos)
				}
				lists[dir] = append(lists[dir], c)
			}
		}
	}
	var outs []gogen.Output
	for _, dir := range slices.Sorted(maps.Keys(lists)) {
		g := gogen.New(name, path.Base(dir), path.Base(dir), set)
		g.Constants("Limits and defaults of the schemas in api.", lists[dir])
		src, err := g.Bytes()
		if err != nil {
			return nil, err
		}
		outs = append(outs, gogen.Output{Path: filepath.Join(filepath.FromSlash(dir), "schema.gen.go"), Data: src})
	}
	return outs, nil
}
