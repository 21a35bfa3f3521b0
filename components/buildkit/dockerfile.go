package buildkit

import (
	"regexp"
	"strings"

	"github.com/distribution/reference"
)

var syntaxDirective = regexp.MustCompile(`(?i)^#\s*syntax\s*=`)

// withoutSyntax hides a "# syntax=" directive: the frontend it names would
// have to be pulled from a registry, and the built-in one understands the language. Lines keep their numbers.
func withoutSyntax(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, l := range lines {
		trimmed := strings.TrimSpace(strings.TrimPrefix(l, "\ufeff"))
		if trimmed == "" || !strings.HasPrefix(trimmed, "#") {
			break // directives are at the top only
		}
		if syntaxDirective.MatchString(trimmed) {
			lines[i] = "# (" + strings.TrimSpace(trimmed[1:]) + ")\n"
		}
	}
	return strings.Join(lines, "")
}

// contextName is an image name as the frontend looks it up among named contexts.
func contextName(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return strings.TrimSuffix(reference.FamiliarString(named), ":latest")
}
