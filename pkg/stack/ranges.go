package stack

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

var (
	exactVersion = regexp.MustCompile(`^\d+(\.\d+){0,2}$`)
	comparator   = regexp.MustCompile(`(\^|~|>=|<=|>|<|=)?\s*v?(\d+|[xX*])(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?(?:-[0-9A-Za-z.]+)?`)
)

// inRange says whether some version of a major line fits an npm range. It
// looks at major versions, and at whether a bound excludes the whole line.
func inRange(want string, major int) bool {
	for alternative := range strings.SplitSeq(want, "||") {
		if low, high, ok := strings.Cut(alternative, " - "); ok {
			alternative = ">=" + strings.TrimSpace(low) + " <=" + strings.TrimSpace(high)
		}
		fits := true
		for _, m := range comparator.FindAllStringSubmatch(alternative, -1) {
			n := 0
			if strings.ContainsAny(m[2], "xX*") {
				continue
			}
			fmt.Sscan(m[2], &n)
			rest := strings.Trim(m[3]+m[4], "0xX*") != "" // a minor or patch version is given
			switch m[1] {
			case ">=":
				fits = fits && major >= n
			case ">":
				fits = fits && (major > n || major == n && rest)
			case "<":
				fits = fits && (major < n || major == n && rest)
			case "<=":
				fits = fits && major <= n
			default:
				fits = fits && major == n
			}
		}
		if fits {
			return true
		}
	}
	return false
}

// firstInRange returns the first of the major lines that fits an npm range; 0 for none.
func firstInRange(want string, majors ...int) int {
	for _, m := range majors {
		if inRange(want, m) {
			return m
		}
	}
	return 0
}

// The minor lines of Python 3 that are known.
const (
	oldestPython = 8
	newestPython = 14
)

// specifier is one of PEP 440, or of poetry: "^3.10", "~3.11", "3.11.*".
var specifier = regexp.MustCompile(`^(===|==|~=|!=|<=|>=|<|>|\^|~)?\s*v?(\d+|\*)(?:\.(\d+|\*))?(?:\.(\d+|\*))?`)

// pythonFits says whether some version 3.minor fits what a project requires.
func pythonFits(want string, minor int) (bool, error) {
	var failed error
	for alternative := range strings.SplitSeq(want, "||") {
		fits := true
		for part := range strings.SplitSeq(alternative, ",") {
			part = strings.TrimSpace(part)
			if part == "" || part == "*" {
				continue
			}
			m := specifier.FindStringSubmatch(part)
			if m == nil {
				return false, fmt.Errorf("%q is not understood", part)
			}
			fits = fits && fitsSpecifier(m[1], m[2], m[3], m[4], minor)
		}
		if fits {
			return true, failed
		}
	}
	return false, failed
}

// fitsSpecifier says so for one specifier, given its operator and the parts of its version, empty or "*" for any.
func fitsSpecifier(operator, major, middle, patch string, minor int) bool {
	number := func(s string) (n int, ok bool) {
		_, err := fmt.Sscan(s, &n)
		return n, err == nil
	}
	x, ok := number(major)
	if !ok {
		return true // "*"
	}
	y, hasMinor := number(middle)
	z, hasPatch := number(patch)
	// Python 3.minor against x.y, where y may be absent.
	order := cmp.Compare(3, x)
	if order == 0 && hasMinor {
		order = cmp.Compare(minor, y)
	}
	switch operator {
	case ">=", "^":
		return order >= 0 && (operator == ">=" || x == 3)
	case ">":
		return order > 0 || order == 0 && hasMinor // 3.11.1 is more than 3.11
	case "<":
		return order < 0 || order == 0 && hasPatch && z > 0
	case "<=":
		return order <= 0
	case "!=":
		return order != 0 || !hasMinor || hasPatch // of a patch version another fits
	case "~=":
		if hasPatch {
			return order == 0
		}
		return order >= 0 && x == 3
	}
	return order == 0
}
