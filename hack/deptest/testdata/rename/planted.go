// Package rename has planted violations: each marked line replaces a file
// without atomicfile.
package rename

import "os"

func replace(path string) error {
	if err := os.WriteFile(path+".tmp", nil, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path) // want
}

var move = os.Rename // want

func socket(tmp, path string) error {
	// A socket is no file for atomicfile.
	return os.Rename(tmp, path)
}

// aside does not replace a file, as atomicfile does.
func aside(path string) error { return os.Rename(path, path+".old") }
