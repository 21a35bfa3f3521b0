package main

import (
	"errors"
	"path/filepath"

	"miren.dev/runtime/pkg/schema/gogen"
	"miren.dev/runtime/pkg/schema/lang"
)

const name = "schemagen"

// generate renders every file without writing any.
func generate(root string) ([]gogen.Output, error) {
	set, err := lang.LoadSet(root)
	if err != nil {
		return nil, err
	}
	var outs []gogen.Output
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
		outs = append(outs, gogen.Output{Path: filepath.Join(dir, "schema.gen.go"), Data: src}, gogen.Output{Path: filepath.Join(dir, "schema.lock.yml"), Data: lock})
	}
	exported, err := exports(set)
	if err != nil {
		return nil, err
	}
	outs = append(outs, exported...)
	ids, err := idPackage(set)
	if err != nil {
		return nil, err
	}
	js, err := jsonSchema(set)
	if err != nil {
		return nil, err
	}
	return append(outs,
		gogen.Output{Path: filepath.Join("api", "id", "id.gen.go"), Data: ids},
		gogen.Output{Path: filepath.Join("docs", "reference", "entities.schema.json"), Data: js},
		gogen.Output{Path: filepath.Join("docs", "reference", "entities.md"), Data: reference(set)},
	), nil
}
