package source

import (
	"bytes"
	"path"
	"regexp"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"miren.dev/runtime/pkg/errs"
)

// always lists names that are never part of a source.
var always = []string{".git", ".hg", ".svn", ".runtime/state", ".runtime/cache", ".runtime/tmp"}

// defaults are ignored unless a rule of the source includes them: builds make
// these files anew, and files built on another machine would be in the way.
var defaults = parseGitignore("", []byte("node_modules/\n__pycache__/\n*.pyc\n.venv/\n.DS_Store\n"))

// rule is one line of a .gitignore.
type rule struct {
	dir     string // folder of the file, "" for the root
	re      *regexp.Regexp
	negated bool
	onlyDir bool
}

// parseGitignore reads a file of the folder dir (slash-separated, "" for the
// root). A line that git would not understand matches nothing.
func parseGitignore(dir string, text []byte) []rule {
	var rules []rule
	for line := range strings.SplitSeq(string(bytes.TrimPrefix(text, []byte("\ufeff"))), "\n") {
		line = strings.TrimSuffix(line, "\r")
		// Spaces at the end do not count unless they are escaped.
		for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
			line = line[:len(line)-1]
		}
		if line == "" || line[0] == '#' {
			continue
		}
		r := rule{dir: dir}
		if line[0] == '!' {
			r.negated, line = true, line[1:]
		}
		if strings.HasSuffix(line, "/") {
			r.onlyDir, line = true, strings.TrimRight(line, "/")
		}
		if line == "" {
			continue
		}
		anchored := strings.Contains(line, "/")
		re, err := regexp.Compile(globPattern(strings.TrimPrefix(line, "/"), anchored))
		if err != nil {
			continue
		}
		r.re = re
		rules = append(rules, r)
	}
	return rules
}

// globPattern translates a pattern of git's into a regular expression for a
// path relative to the folder of the rule.
func globPattern(glob string, anchored bool) string {
	var b strings.Builder
	b.WriteString(`^`)
	if !anchored {
		b.WriteString(`(?:.*/)?`)
	}
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; c {
		case '*':
			if !strings.HasPrefix(glob[i:], "**") {
				b.WriteString(`[^/]*`)
				continue
			}
			before := i == 0 || glob[i-1] == '/'
			rest := strings.TrimLeft(glob[i:], "*")
			i = len(glob) - len(rest) - 1
			switch {
			case before && rest == "":
				b.WriteString(`.+`)
			case before && rest[0] == '/':
				b.WriteString(`(?:.*/)?`)
				i++
			default:
				b.WriteString(`[^/]*`)
			}
		case '?':
			b.WriteString(`[^/]`)
		case '[':
			class, n := globClass(glob[i:])
			if n == 0 {
				b.WriteString(`\[`)
				continue
			}
			b.WriteString(class)
			i += n - 1
		case '\\':
			if i+1 < len(glob) {
				i++
				b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
			}
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	b.WriteString(`$`)
	return b.String()
}

// globClass translates "[a-z]" at the beginning of s; n is its length, 0 when it has no end.
func globClass(s string) (class string, n int) {
	i := 1
	not := i < len(s) && (s[i] == '!' || s[i] == '^')
	if not {
		i++
	}
	begin := i
	if i < len(s) && s[i] == ']' {
		i++
	}
	for i < len(s) && s[i] != ']' {
		if s[i] == '\\' {
			i++
		}
		if i+1 < len(s) && s[i] == '[' && s[i+1] == ':' {
			if end := strings.Index(s[i:], ":]"); end > 0 {
				i += end + 1
			}
		}
		i++
	}
	if i >= len(s) {
		return "", 0
	}
	body := strings.ReplaceAll(s[begin:i], `\`, `\\`)
	body = strings.ReplaceAll(body, `\\]`, `\]`)
	if strings.HasPrefix(body, "]") {
		body = `\` + body
	}
	if strings.HasPrefix(body, "^") {
		body = `\` + body
	}
	if not {
		return `[^/` + body + `]`, i + 1
	}
	return `[` + body + `]`, i + 1
}

// matcher knows the rules that hold at one point of a walk. Rules are added as
// folders are entered; those of other folders do not match.
type matcher struct {
	git    []rule
	docker *patternmatcher.PatternMatcher
	// above is the path from the root of the repository to the source, "" when they are the same.
	above string
}

// gitIgnored reports whether the rules ignore a path. None of the path's folders may be ignored.
func (m *matcher) gitIgnored(p string, isDir bool) bool {
	full := path.Join(m.above, p)
	for i := len(m.git) - 1; i >= 0; i-- {
		r := m.git[i]
		if r.onlyDir && !isDir {
			continue
		}
		rel := full
		if r.dir != "" {
			var ok bool
			if rel, ok = strings.CutPrefix(full, r.dir+"/"); !ok {
				continue
			}
		}
		if r.re.MatchString(rel) {
			return !r.negated
		}
	}
	return false
}

// dockerIgnored reports whether .dockerignore ignores a path.
func (m *matcher) dockerIgnored(p string) (bool, error) {
	if m.docker == nil {
		return false, nil
	}
	return m.docker.MatchesOrParentMatches(p)
}

// dockerMayReenter reports whether .dockerignore may include a path below an ignored folder again.
func (m *matcher) dockerMayReenter(dir string) bool {
	if m.docker == nil || !m.docker.Exclusions() {
		return false
	}
	for _, p := range m.docker.Patterns() {
		if !p.Exclusion() {
			continue
		}
		s := p.String()
		if strings.HasPrefix(s, dir+"/") || strings.HasPrefix(dir+"/", s+"/") || strings.ContainsAny(s, "*?[") {
			return true
		}
	}
	return false
}

func parseDockerignore(text []byte) (*patternmatcher.PatternMatcher, error) {
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err == nil {
		var m *patternmatcher.PatternMatcher
		if m, err = patternmatcher.New(patterns); err == nil {
			return m, nil
		}
	}
	return nil, errs.New(errs.InvalidArgument, ".dockerignore: %w", err)
}
