package disks

import (
	"slices"
	"strings"
)

// Permits reports whether projects may name a store: it is one of Stores, or
// below one, with the same parameters.
func (s *Service) Permits(store string) bool {
	path, query, _ := strings.Cut(store, "?")
	if slices.Contains(strings.Split(path, "/"), "..") {
		return false
	}
	return slices.ContainsFunc(s.Stores, func(permitted string) bool {
		p, q, _ := strings.Cut(permitted, "?")
		p = strings.TrimSuffix(p, "/")
		return q == query && (path == p || strings.HasPrefix(path, p+"/"))
	})
}
