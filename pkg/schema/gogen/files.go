package gogen

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Output is one generated file, its path relative to the root.
type Output struct {
	Path string
	Data []byte
}

// Main is the main function of a generator: it reads the flags -root and
// -check, renders all files, writes those that changed and prints their names.
// With -check it writes nothing and exits with status 1 if one would change.
func Main(name string, generate func(root string) ([]Output, error)) {
	root := flag.String("root", ".", "root of the repository")
	check := flag.Bool("check", false, "write nothing; fail if a file is out of date")
	flag.Parse()
	if err := Run(*root, *check, generate); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Run writes the files that are out of date; with check it only names them in
// its error.
func Run(root string, check bool, generate func(root string) ([]Output, error)) error {
	outs, err := generate(root)
	if err != nil {
		return err
	}
	var stale []string
	for _, o := range outs {
		path := filepath.Join(root, o.Path)
		old, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err == nil && bytes.Equal(old, o.Data) {
			continue
		}
		stale = append(stale, o.Path)
		if check {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, o.Data, 0o644); err != nil {
			return err
		}
		fmt.Println(o.Path)
	}
	if check && len(stale) > 0 {
		return fmt.Errorf("out of date: %s; run make generate", strings.Join(stale, ", "))
	}
	return nil
}
