package appconfig

import (
	"strings"
)

// keyLines finds the line of every key and table. The text must be valid TOML.
// Keys within inline tables have the line of their table.
func keyLines(text string) map[string]int {
	lines := map[string]int{}
	prefix, closing := "", ""
	depth := 0
	n := 0
	mark := func(key string) { // also records the tables around it
		for {
			if _, ok := lines[key]; !ok {
				lines[key] = n
			}
			i := strings.LastIndexByte(key, '.')
			if i < 0 {
				return
			}
			key = key[:i]
		}
	}
	for line := range strings.Lines(text) {
		n++
		if closing != "" { // inside a multi-line string
			if _, rest, ok := strings.Cut(line, closing); ok {
				closing = ""
				depth += brackets(rest)
			}
			continue
		}
		trimmed := strings.TrimSpace(line)
		if depth > 0 { // inside a list over several lines
			depth += brackets(trimmed)
			continue
		}
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		if trimmed[0] == '[' {
			end := strings.IndexByte(trimmed, ']')
			prefix = joinKey(splitKey(strings.Trim(trimmed[:max(end, 0)], "[ ")))
			mark(prefix)
			continue
		}
		key, value, ok := cutKey(trimmed)
		if !ok {
			continue
		}
		full := joinKey(splitKey(key))
		if prefix != "" {
			full = prefix + "." + full
		}
		mark(full)
		for _, q := range []string{`"""`, "'''"} {
			if i := strings.Index(value, q); i >= 0 && !strings.Contains(value[i+3:], q) {
				closing = q
			}
		}
		if closing == "" {
			depth = max(0, brackets(value))
		}
	}
	return lines
}

// cutKey splits a line at the first = that is not in quotes.
func cutKey(line string) (key, value string, ok bool) {
	quote := byte(0)
	for i := range len(line) {
		switch c := line[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '=':
			return strings.TrimSpace(line[:i]), line[i+1:], true
		}
	}
	return "", "", false
}

// splitKey splits a dotted key whose parts may be quoted.
func splitKey(key string) []string {
	var parts []string
	var b strings.Builder
	quote := byte(0)
	for i := range len(key) {
		switch c := key[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			b.WriteByte(c)
		case c == '"' || c == '\'':
			quote = c
		case c == '.':
			parts = append(parts, b.String())
			b.Reset()
		case c != ' ' && c != '\t':
			b.WriteByte(c)
		}
	}
	return append(parts, b.String())
}

func joinKey(parts []string) string { return strings.Join(parts, ".") }

// brackets returns how many more lists and tables a piece of a value opens than it closes.
func brackets(s string) int {
	depth, quote := 0, byte(0)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quote == '"' && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#':
			return depth
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		}
	}
	return depth
}

// closest returns the choice that s most likely stands for; empty when none is near.
func closest(s string, choices []string) string {
	best, bestDistance := "", 1+max(1, len(s)/3)
	for _, c := range choices {
		d := distance(strings.ToLower(s), c)
		if strings.HasPrefix(c, strings.ToLower(s)) && len(s) >= 3 || strings.HasPrefix(strings.ToLower(s), c) {
			d = min(d, 1)
		}
		if d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance returns the number of edits between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		previous := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			previous, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, previous+cost)
		}
	}
	return row[len(b)]
}
