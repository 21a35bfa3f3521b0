package buildkit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"golang.org/x/mod/sumdb/dirhash"

	"miren.dev/runtime/testsupport/baseimages"
)

// publicSource is an app that others wrote, as a registry of packages has it. testdata/public.toml lists them, and
// docs/stacks.md shows the list.
type publicSource struct {
	Name    string
	From    string // npm, pypi, go, crates or debian: the registry
	Package string
	Version string
	Sum     string // of all its files, as go.sum has it
	Dir     string // folder of the package; empty: all of it
	AppTOML string `toml:"app"` // empty: it is built without any
	Path    string // that is asked for; empty: /
	Serves  string // text of the answer
	Quick   bool   // make test builds it too
	Fails   string // why it does not work; empty: it works
	Error   string // text of its failure
}

// readPublic reads the list.
func readPublic(t *testing.T) []publicSource {
	t.Helper()
	var list struct{ Source []publicSource }
	meta, err := toml.DecodeFile("testdata/public.toml", &list)
	if err != nil || len(meta.Undecoded()) > 0 {
		t.Fatal(err, meta.Undecoded())
	}
	seen := map[string]bool{}
	for _, s := range list.Source {
		if seen[s.Name] || s.Version == "" || (s.Serves == "") == (s.Fails == "") || (s.Fails == "") != (s.Error == "") {
			t.Fatalf("public.toml: %+v", s)
		}
		seen[s.Name] = true
	}
	return list.Source
}

// fetch returns the package, which it downloads unless this machine has it, after a comparison with its sum.
func (s *publicSource) fetch(t *testing.T) string {
	t.Helper()
	name := s.From + "-" + regexp.MustCompile(`[^a-zA-Z0-9.]+`).ReplaceAllString(s.Package, "-") + "-" + s.Version
	dir := filepath.Join(filepath.Dir(baseimages.Dir(t)), "corpus", name)
	if _, err := os.Stat(dir); err != nil {
		tmp, err := os.MkdirTemp(filepath.Dir(filepath.Dir(dir)), "corpus-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(tmp)
		s.download(t, tmp)
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		// Another test may have fetched it meanwhile.
		if err := os.Rename(filepath.Join(tmp, "source"), dir); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	sum, err := dirhash.HashDir(dir, "", dirhash.Hash1)
	if err != nil {
		t.Fatal(err)
	}
	if sum != s.Sum {
		t.Fatalf("%s %s has the sum %s, but public.toml says %q", s.Package, s.Version, sum, s.Sum)
	}
	return dir
}

// download has the client of the registry write the package into the folder source in dir.
func (s *publicSource) download(t *testing.T, dir string) {
	t.Helper()
	run := func(name string, args ...string) []byte {
		t.Helper()
		var stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Stderr = dir, &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, &stderr)
		}
		return out
	}
	source := filepath.Join(dir, "source")
	if s.From == "go" {
		var module struct{ Dir string }
		if err := json.Unmarshal(run("go", "mod", "download", "-json", s.Package+"@"+s.Version), &module); err != nil {
			t.Fatal(err)
		}
		run("cp", "-r", module.Dir, source)
		run("chmod", "-R", "u+w", source)
		return
	}
	switch s.From {
	case "npm":
		run("npm", "pack", "--silent", s.Package+"@"+s.Version)
	case "pypi":
		run("python3", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", s.Package, s.Package+"=="+s.Version)
	case "crates":
		run("cargo", "info", "--quiet", s.Package+"@"+s.Version) // keeps what it reads
		home := cmp.Or(os.Getenv("CARGO_HOME"), filepath.Join(os.Getenv("HOME"), ".cargo"))
		run("sh", "-c", `cp "$1"/registry/cache/*/"$2".crate .`, "sh", home, s.Package+"-"+s.Version)
	case "debian":
		run("apt-get", "--quiet", "download", s.Package+"="+s.Version)
	default:
		t.Fatalf("no registry is called %q", s.From)
	}
	var archives []string
	for _, kind := range []string{"*.tar.gz", "*.tgz", "*.crate", "*.deb"} {
		found, err := filepath.Glob(filepath.Join(dir, kind))
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, found...)
	}
	if len(archives) != 1 {
		t.Fatal(archives)
	}
	run("mkdir", "source")
	if s.From == "debian" { // the files of the package as they are installed
		run("dpkg-deb", "--extract", archives[0], "source")
		run("chmod", "-R", "u=rwX,go=rX", source)
		return
	}
	run("tar", "-xf", archives[0], "-C", "source", "--strip-components=1", "--no-same-owner", "--no-same-permissions")
	run("chmod", "-R", "u=rwX,go=rX", source)
}

// folder is a copy of the source, with its app.toml.
func (s *publicSource) folder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), s.Name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(s.fetch(t), s.Dir))); err != nil {
		t.Fatal(err)
	}
	if s.AppTOML != "" {
		if err := os.WriteFile(filepath.Join(dir, "app.toml"), []byte(s.AppTOML), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// testPublic builds the quick ones of the list.
func testPublic(t *testing.T, e *env) {
	for _, s := range readPublic(t) {
		if s.Quick {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel() // they mostly wait for registries
				testSource(t, e, s.test(t))
			})
		}
	}
}

func (s *publicSource) test(t *testing.T) sourceTest {
	path := s.Path
	if path == "" {
		path = "/"
	}
	return sourceTest{name: s.Name, path: path, serves: s.Serves, dir: s.folder(t)}
}

var update = flag.Bool("update", false, "write the list of public sources into docs/stacks.md")

const publicBegin, publicEnd = "<!-- public.toml: begin -->\n", "<!-- public.toml: end -->\n"

// TestStacksListsPublicSources: docs/stacks.md says of each public source what make corpus finds.
func TestStacksListsPublicSources(t *testing.T) {
	const file = "../../docs/stacks.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), publicBegin)
	_, after, ok2 := strings.Cut(rest, publicEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the list", file)
	}
	var list strings.Builder
	works := 0
	sources := readPublic(t)
	for _, s := range sources {
		result := "works"
		if s.Fails != "" {
			result = "**fails**: " + s.Fails
		} else {
			works++
		}
		setting := "–"
		if s.AppTOML != "" {
			setting = "`" + strings.Join(strings.FieldsFunc(s.AppTOML, func(r rune) bool { return r == '\n' }), "`, `") + "`"
		}
		what := s.Package + " " + s.Version
		if s.Dir != "" {
			what += ", `" + s.Dir + "`"
		}
		fmt.Fprintf(&list, "| %s | %s | %s | %s |\n", what, s.From, strings.ReplaceAll(setting, "|", "\\|"), result)
	}
	want := before + publicBegin + fmt.Sprintf("\n%d of %d work.\n\n| package | registry | app.toml | result |\n|---|---|---|---|\n", works, len(sources)) +
		list.String() + "\n" + publicEnd + after
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatalf("%s has another list than testdata/public.toml: go test ./components/buildkit -run %s -update", file, t.Name())
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
