package appconfig

import (
	"maps"
	"slices"
)

// Git says what a push to the server does.
type Git struct {
	Branch   string            // whose pushes are deployed; empty: main or master
	Previews bool              // pushes of other branches become previews
	Folders  map[string]string // of the apps in the repository, by the name of the app; paths below the root, with slashes
}

// Deploys reports whether pushes of a branch are deployed to the app's hosts.
func (g Git) Deploys(branch string) bool {
	if g.Branch == "" {
		return branch == "main" || branch == "master"
	}
	return branch == g.Branch
}

// git reads the table git.
func (p *parser) git(to *Git) field {
	var previews *bool
	keys := table{"branch": p.text(&to.Branch), "previews": p.flag(&previews), "folders": p.folders(&to.Folders)}
	return field{object(keys), func(key string, v any) {
		p.table(keys).set(key, v)
		to.Previews = previews != nil && *previews
	}}
}

// folders reads the table git.folders.
func (p *parser) folders(to *map[string]string) field {
	return field{named(AppNamePattern, p.path(new(string)).schema), func(key string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			p.fail(key, "%s must be a table, not %s", key, typeName(v))
			return
		}
		*to = map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			var app, folder string
			p.appName(&app).set(key, name)
			p.path(&folder).set(key+"."+name, m[name])
			(*to)[name] = folder
		}
	}}
}
