package lang

import (
	"miren.dev/runtime/pkg/suggest"
)

// Suggest returns `; did you mean "x"?` for the known word nearest to got, or
// "" if none is near.
func Suggest(got string, known []string) string {
	if s := suggest.Nearest(got, known); s != "" {
		return `; did you mean "` + s + `"?`
	}
	return ""
}
