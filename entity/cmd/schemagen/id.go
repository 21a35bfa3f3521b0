package main

import (
	"miren.dev/runtime/pkg/schema/gogen"
	"miren.dev/runtime/pkg/schema/lang"
)

// idPackage renders api/id: a typed id per kind, in a package of its own so
// that domains can refer to each other.
func idPackage(set *lang.Set) ([]byte, error) {
	g := gogen.New(name, "id", "id", set)
	g.PackageDoc("Package id has a typed id for each kind of all schemas, so that domains can refer to each other.")
	s := g.Import(schemaPath)
	for _, k := range set.Kinds() {
		n := gogen.GoName(k.Name)
		g.P("// %s is the id of an entity of kind %s (%q and 16 characters).", n, k.Name, k.Prefix+"-")
		g.P("type %s string\n", n)
		g.P("// New%s returns a fresh random id.", n)
		g.P("func New%s() %s { return %s(%s.NewID(%q)) }\n", n, n, n, s, k.Prefix)
	}
	return g.Bytes()
}
