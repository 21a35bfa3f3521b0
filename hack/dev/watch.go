package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// pollInterval is the time between two polls of the source. A change counts
// once two polls see it, so that an editor or git has finished.
const pollInterval = 250 * time.Millisecond

// outside are directories at the root that no binary is built from.
var outside = []string{"bench", "bin", "dagger", "docs", "e2e", "examples", "hack", "testsupport", "tmp"}

// stamp tells two states of a file apart.
type stamp struct {
	size  int64
	mtime time.Time
}

// source has the stamps of all files that binaries can be built from, by path
// below the root. Polling needs some milliseconds for this checkout, and works
// on every file system.
func source(root string) (map[string]stamp, error) {
	files := map[string]stamp{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && skipDir(rel, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || skipFile(d.Name()) {
			return nil
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		files[rel] = stamp{st.Size(), st.ModTime()}
		return nil
	})
	return files, err
}

func skipDir(rel, name string) bool {
	return strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata" || slices.Contains(outside, rel)
}

// skipFile skips tests, texts, and the temporary files of editors.
func skipFile(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasSuffix(name, "~") ||
		strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".md")
}

// changed returns the paths that differ, sorted.
func changed(was, is map[string]stamp) []string {
	var paths []string
	for path, s := range is {
		if was[path] != s {
			paths = append(paths, path)
		}
	}
	for path := range was {
		if _, ok := is[path]; !ok {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// sum is a short hash of the contents of files, by path.
func sum(root string, paths []string) (string, error) {
	h := sha256.New()
	for _, path := range paths {
		f, err := os.Open(filepath.Join(root, path))
		if err != nil {
			return "", err
		}
		io.WriteString(h, path+"\n")
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}

// below returns the paths in a directory, sorted.
func below(files map[string]stamp, dir string) []string {
	var paths []string
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(path, dir+"/") {
			paths = append(paths, path)
		}
	}
	return paths
}
