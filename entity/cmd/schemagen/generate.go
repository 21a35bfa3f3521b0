package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"miren.dev/runtime/pkg/schema/lang"
)

const name = "schemagen"

// output is one generated file, its path relative to the root.
type output struct {
	path string
	data []byte
}

// run generates everything under root, or with check compares.
func run(root string, check bool) error {
	outs, err := generate(root)
	if err != nil {
		return err
	}
	var stale []string
	for _, o := range outs {
		path := filepath.Join(root, o.path)
		old, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err == nil && bytes.Equal(old, o.data) {
			continue
		}
		stale = append(stale, o.path)
		if check {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, o.data, 0o644); err != nil {
			return err
		}
		fmt.Println(o.path)
	}
	if check && len(stale) > 0 {
		return fmt.Errorf("out of date: %s; run make generate", strings.Join(stale, ", "))
	}
	return nil
}

// generate renders every file without writing any.
func generate(root string) ([]output, error) {
	set, err := lang.LoadSet(root)
	if err != nil {
		return nil, err
	}
	var outs []output
	var locks []*lang.Lock
	var errList []error
	for _, f := range set.Files {
		l, err := lang.LoadLock(filepath.Join(root, "api", f.Domain, "schema.lock.yml"), f.Domain)
		if err != nil {
			return nil, err
		}
		errList = append(errList, l.File(f))
		locks = append(locks, l)
	}
	if err := errors.Join(errList...); err != nil {
		return nil, err
	}
	for i, f := range set.Files {
		src, err := domain(f, set)
		if err != nil {
			return nil, err
		}
		lock, err := locks[i].Bytes(name)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join("api", f.Domain)
		outs = append(outs, output{filepath.Join(dir, "schema.gen.go"), src}, output{filepath.Join(dir, "schema.lock.yml"), lock})
	}
	ids, err := idPackage(set)
	if err != nil {
		return nil, err
	}
	js, err := jsonSchema(set)
	if err != nil {
		return nil, err
	}
	return append(outs,
		output{filepath.Join("api", "id", "id.gen.go"), ids},
		output{filepath.Join("docs", "reference", "entities.schema.json"), js},
		output{filepath.Join("docs", "reference", "entities.md"), reference(set)},
	), nil
}
