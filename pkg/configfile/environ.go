package configfile

import (
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

// sections are the mappings of the file, from the keys.
func (s *Schema[C]) sections() []string {
	var all []string
	for i := range s.Keys {
		if of, _, ok := strings.Cut(s.Keys[i].Path, "."); ok && !slices.Contains(all, of) {
			all = append(all, of)
		}
	}
	return all
}

// unknownVariables reports variables that begin like those of a section but
// belong to no key. Others with the prefix belong to other programs.
func (s *Schema[C]) unknownVariables(env map[string]string) []error {
	known := make([]string, len(s.Keys))
	for i := range s.Keys {
		known[i] = s.Keys[i].Env()
	}
	var names []string
	for name := range env {
		inSection := slices.ContainsFunc(s.sections(), func(of string) bool {
			return strings.HasPrefix(name, s.Keys[0].Prefix+"_"+strings.ToUpper(of)+"_")
		})
		if inSection && !slices.Contains(known, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var all []error
	for _, name := range names {
		hint := ""
		if near := suggest.Nearest(name, known); near != "" {
			hint = "; did you mean " + near + "?"
		}
		all = append(all, errs.New(errs.InvalidArgument, "environment: unknown variable %s%s", name, hint))
	}
	return all
}
