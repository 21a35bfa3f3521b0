package appconfig

// Git says what a push to the server does.
type Git struct {
	Branch   string // whose pushes are deployed; empty: main or master
	Previews bool   // pushes of other branches become previews
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
	keys := table{"branch": p.text(&to.Branch), "previews": p.flag(&previews)}
	return field{object(keys), func(key string, v any) {
		p.table(keys).set(key, v)
		to.Previews = previews != nil && *previews
	}}
}
