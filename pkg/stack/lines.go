package stack

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// line is a release line of a language: 8.2 of PHP.
type line struct{ major, minor int }

func (l line) String() string { return fmt.Sprintf("%d.%d", l.major, l.minor) }

// Lines that are known, the oldest first.
var (
	phpLines  = []line{{7, 4}, {8, 0}, {8, 1}, {8, 2}, {8, 3}, {8, 4}, {8, 5}}
	rubyLines = []line{{2, 7}, {3, 0}, {3, 1}, {3, 2}, {3, 3}, {3, 4}, {4, 0}}
)

// lineRequirement is one of Composer or RubyGems.
var lineRequirement = regexp.MustCompile(`(\^|~>|~|>=|<=|!=|==|<|>|=)?\s*v?(\d+)(?:\.(\d+|\*))?(?:\.(\d+|\*))?[\w.+-]*`)

// fits says whether some version of a line fits what a source requires.
func (l line) fits(want string) bool {
	for alternative := range strings.SplitSeq(strings.ReplaceAll(want, "||", "|"), "|") {
		all := true
		for _, m := range lineRequirement.FindAllStringSubmatch(alternative, -1) {
			all = all && l.fitsOne(m[1], m[2], m[3], m[4])
		}
		if all {
			return true
		}
	}
	return false
}

func (l line) fitsOne(operator, major, minor, patch string) bool {
	var x, y int
	_, _ = fmt.Sscan(major, &x) // digits, as the expression has it
	_, err := fmt.Sscan(minor, &y)
	hasMinor, hasPatch := err == nil, patch != "" && patch != "*"
	order := cmp.Compare(l.major, x)
	if order == 0 && hasMinor {
		order = cmp.Compare(l.minor, y)
	}
	switch operator {
	case "^":
		return l.major == x && order >= 0
	case "~", "~>":
		if hasPatch {
			return order == 0
		}
		return l.major == x && order >= 0
	case ">=":
		return order >= 0
	case ">":
		return order > 0 || order == 0 && hasMinor
	case "<=":
		return order <= 0
	case "<":
		return order < 0 || order == 0 && hasPatch && patch != "0"
	case "!=":
		return order != 0 || !hasMinor || hasPatch
	}
	return order == 0
}

// linesFor is the tag of an image for the newest run of lines that fit: "8.2-8.4", "8.2-", "8.3"; empty when none does.
func linesFor(lines []line, want string) string {
	low, high := -1, -1
	for i := len(lines) - 1; i >= 0 && (high < 0 || lines[i].fits(want)); i-- {
		if lines[i].fits(want) {
			low, high = i, max(high, i)
		}
	}
	switch {
	case high < 0:
		return ""
	case high == len(lines)-1:
		return lines[low].String() + "-"
	case low == high:
		return lines[low].String()
	}
	return lines[low].String() + "-" + lines[high].String()
}
