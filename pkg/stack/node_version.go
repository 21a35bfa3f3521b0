package stack

import (
	"fmt"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// DefaultNode is the major version of Node.js when nothing asks for another.
const DefaultNode = 22

// Major versions, the preferred first: the default, else the nearest newer, else the newest older.
var nodeMajors = []int{DefaultNode, 24, 26, 20, 18, 16, 14}

// nodeNames are the names that version files may have instead of numbers.
var nodeNames = map[string]int{
	"node": DefaultNode, "stable": DefaultNode, "latest": DefaultNode, "current": DefaultNode, "lts/*": DefaultNode, "lts": DefaultNode,
	"lts/fermium": 14, "lts/gallium": 16, "lts/hydrogen": 18, "lts/iron": 20, "lts/jod": 22, "lts/krypton": 24,
}

// nodeVersion is the version for the base image: a major, or what was asked for exactly.
func (s *source) nodeVersion(p *Plan, j *packageJSON) (string, error) {
	if v := s.cfg.Build.Version; v != "" {
		p.because("%s asks for Node.js %s", s.cfg.File, v)
		p.fact(FactVersion, "Node.js "+v, s.cfg.File)
		return strings.TrimPrefix(v, "v"), nil
	}
	for _, f := range []string{".nvmrc", ".node-version", ".tool-versions"} {
		v, err := s.versionIn(f, "nodejs", "node")
		if err != nil {
			return "", err
		}
		if v == "" {
			continue
		}
		v = strings.ToLower(strings.TrimPrefix(v, "v"))
		if major, ok := nodeNames[v]; ok {
			p.because("%s asks for Node.js %s: %d", f, v, major)
			p.fact(FactVersion, fmt.Sprintf("Node.js %d", major), f)
			return fmt.Sprint(major), nil
		}
		if !exactVersion.MatchString(v) {
			return "", errs.New(errs.InvalidArgument, "%s asks for Node.js %q, which is not a version", f, v).
				WithHint("write one such as %d, or set build.version", DefaultNode)
		}
		p.because("%s asks for Node.js %s", f, v)
		p.fact(FactVersion, "Node.js "+v, f)
		return v, nil
	}
	if v := j.Volta["node"]; exactVersion.MatchString(v) {
		p.because("volta in package.json asks for Node.js %s", v)
		p.fact(FactVersion, "Node.js "+v, "volta in package.json")
		return v, nil
	}
	want := j.Engines["node"]
	if want == "" {
		p.because("no version of Node.js is asked for: %d", DefaultNode)
		p.fact(FactVersion, fmt.Sprintf("Node.js %d", DefaultNode), "")
		return fmt.Sprint(DefaultNode), nil
	}
	if major := firstInRange(want, nodeMajors...); major != 0 {
		p.because("engines in package.json asks for Node.js %s: %d", want, major)
		p.fact(FactVersion, fmt.Sprintf("Node.js %d", major), "engines in package.json")
		return fmt.Sprint(major), nil
	}
	return "", errs.New(errs.InvalidArgument, "engines in package.json asks for Node.js %q, which no known version fits", want).
		WithHint("known are 14 to 26, or set build.version to one")
}

// versionIn reads a file that has nothing but a version, or is asdf's
// .tool-versions, where the version is after one of the names; empty for none.
func (s *source) versionIn(file string, names ...string) (string, error) {
	if !s.has(file) {
		return "", nil
	}
	text, err := s.read(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case file != ".tool-versions":
			return f[0], nil
		case len(f) >= 2:
			for _, n := range names {
				if f[0] == n {
					return f[1], nil
				}
			}
		}
	}
	return "", nil
}
