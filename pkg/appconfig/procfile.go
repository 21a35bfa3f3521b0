package appconfig

import (
	"regexp"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

var (
	procfileLine = regexp.MustCompile(`^([A-Za-z0-9_-]+)\s*:\s*(.*)$`)
	shellSyntax  = regexp.MustCompile("[;&|<>()`\n]|^\\s*[A-Za-z_][A-Za-z0-9_]*=")
	shellWord    = regexp.MustCompile(`^\s*(exec|if|for|while|case|until|cd|export|set|\.|source|test|\[|\{|!)(\s|$)`)
)

// parseProcfile reads lines of "name: command". Comments begin with #.
func parseProcfile(file, text string) ([]Service, error) {
	var out []Service
	n := 0
	fail := func(format string, args ...any) error {
		return errs.New(errs.InvalidArgument, "%s:%d: "+format, append([]any{file, n}, args...)...)
	}
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := procfileLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fail(`expected "name: command"`)
		}
		name, command := strings.ReplaceAll(strings.ToLower(m[1]), "_", "-"), m[2]
		if command == "" {
			return nil, fail("%s has no command", m[1])
		}
		if !serviceName.MatchString(name) {
			return nil, fail("%q cannot be the name of a service", m[1])
		}
		for _, s := range out {
			if s.Name == name {
				return nil, fail("%s is there twice", name)
			}
		}
		out = append(out, Service{Name: name, Command: Shell(command)})
	}
	return out, nil
}

// Shell returns the command that runs a command line in the shell. Where the
// line is a single command, the shell replaces itself by it, so that signals
// reach it.
func Shell(line string) []string {
	line = strings.TrimSpace(line)
	if !shellSyntax.MatchString(line) && !shellWord.MatchString(line) {
		line = "exec " + line
	}
	return []string{"/bin/sh", "-c", line}
}
