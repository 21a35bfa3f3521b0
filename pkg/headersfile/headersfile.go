// Package headersfile reads HTTP headers from a file, such as one with a key for a
// collector, so that they are not in a configuration.
package headersfile

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
)

// Read returns the headers of a file: a line each, "Name: value". Empty lines and
// those that begin with # are left out. No file ("") has none. Errors name lines, not
// what is in them.
func Read(file string) (map[string]string, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	headers := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(name, " \t") {
			return nil, fmt.Errorf("line %d is not Name: value", n)
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, lines.Err()
}
