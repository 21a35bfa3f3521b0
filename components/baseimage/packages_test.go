//go:build packages

package baseimage_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/languages"
)

// incompatible are the packages of the table that do not work, and why.
var incompatible = map[string]string{}

// TestPopularPackages installs each package of testdata/packages.yml and runs code that uses it.
func TestPopularPackages(t *testing.T) {
	b, err := os.ReadFile("testdata/packages.yml")
	if err != nil {
		t.Fatal(err)
	}
	var table map[string]map[string]string // code by language and names of packages
	if err := yaml.Unmarshal(b, &table); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	for _, name := range slices.Sorted(maps.Keys(table)) {
		l, err := languages.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		var box *sandbox
		for _, s := range languages.Templates() {
			if s.Name == l.Template {
				s.MemoryMiB, s.DiskMiB = 2048, 16384 // of all packages together
				box = newSandbox(t, m, s)
			}
		}
		for i, packages := range slices.Sorted(maps.Keys(table[name])) {
			t.Run(name+" "+packages, func(t *testing.T) {
				why := incompatible[name+" "+packages]
				dir := fmt.Sprintf("%s/run/%d", box.home, i)
				box.write(t, l, dir, table[name][packages])
				start := time.Now()
				command := append(l.Expand(l.Install, dir), strings.Fields(packages)...)
				_, err := box.try(t, execution.ExecSpec{Command: command, WorkDir: dir}, "")
				installed := time.Now()
				if err == nil {
					_, err = box.try(t, execution.ExecSpec{Command: l.Expand(l.Run, dir), WorkDir: dir}, "")
				}
				switch {
				case err != nil && why == "":
					t.Error(err)
				case err == nil && why != "":
					t.Errorf("it works, and is listed as incompatible: %s", why)
				}
				t.Logf("installed in %s, ran in %s", installed.Sub(start).Round(100*time.Millisecond), time.Since(installed).Round(100*time.Millisecond))
			})
		}
	}
}
