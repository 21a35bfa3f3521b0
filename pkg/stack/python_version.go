package stack

import (
	"fmt"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// pythonVersion is what comes after "runtime/python": a tag with the version or
// the range that was asked for; empty when any will do.
func (s *source) pythonVersion(p *Plan, d *pythonDeps) (string, error) {
	exact, where := s.cfg.Build.Version, s.cfg.File
	if exact == "" {
		for _, f := range []string{".python-version", "runtime.txt", ".tool-versions"} {
			v, err := s.versionIn(f, "python")
			if err != nil {
				return "", err
			}
			if v != "" {
				exact, where = v, f
				break
			}
		}
	}
	if exact == "" && d.python != "" && d.pythonFrom == "Pipfile" {
		exact, where = d.python, d.pythonFrom
	}
	if exact != "" {
		v := strings.TrimPrefix(strings.TrimPrefix(exact, "cpython-"), "python-")
		if !exactVersion.MatchString(v) || !strings.HasPrefix(v, "3") {
			return "", errs.New(errs.InvalidArgument, "%s asks for Python %q, which is not a version of Python 3", where, exact).
				WithHint("write one such as 3.13, or set build.version")
		}
		p.because("%s asks for Python %s", where, v)
		p.fact(FactVersion, "Python "+v, where)
		return ":" + v, nil
	}
	if d.python == "" {
		p.because("no version of Python is asked for: that of the server's distribution")
		p.fact(FactVersion, "Python of the server's distribution", "")
		return "", nil
	}
	low, high, err := pythonRange(d.python)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "%s asks for Python %q: %w", d.pythonFrom, d.python, err).
			WithHint("write it as \">=3.11\", or set build.version")
	}
	p.fact(FactVersion, "Python "+d.python, d.pythonFrom)
	switch {
	case low == 0:
		return "", errs.New(errs.InvalidArgument, "%s asks for Python %q, which no known version fits", d.pythonFrom, d.python).
			WithHint("known are 3.%d to 3.%d, or set build.version to one", oldestPython, newestPython)
	case low == high:
		p.because("%s asks for Python %s: 3.%d", d.pythonFrom, d.python, low)
		return fmt.Sprintf(":3.%d", low), nil
	case high == newestPython:
		p.because("%s asks for Python %s: 3.%d or later, as the server has it", d.pythonFrom, d.python, low)
		return fmt.Sprintf(":3.%d-", low), nil
	}
	p.because("%s asks for Python %s: one of 3.%d to 3.%d, as the server has it", d.pythonFrom, d.python, low, high)
	return fmt.Sprintf(":3.%d-3.%d", low, high), nil
}

// pythonRange is the newest run of minor lines that fit; zeros for none.
func pythonRange(want string) (low, high int, err error) {
	for minor := newestPython; minor >= oldestPython; minor-- {
		fits, err := pythonFits(want, minor)
		if err != nil {
			return 0, 0, err
		}
		switch {
		case fits && high == 0:
			low, high = minor, minor
		case fits:
			low = minor
		case high != 0:
			return low, high, nil
		}
	}
	return low, high, nil
}
