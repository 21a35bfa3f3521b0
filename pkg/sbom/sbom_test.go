package sbom

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

// file is an entry of a layer: one whose name ends in a slash is a folder.
type file struct {
	name, body string
	mode       int64
}

func layer(t *testing.T, files ...file) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.body)), Mode: 0o644 | f.mode}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func archive(t *testing.T, files ...file) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		w, err := z.Create(f.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// list scans layers and returns the package URLs.
func list(t *testing.T, layers ...*bytes.Buffer) []string {
	t.Helper()
	var s Scan
	for _, l := range layers {
		if err := s.Layer(l); err != nil {
			t.Fatal(err)
		}
	}
	var first, again bytes.Buffer
	if err := s.Write(&first, "notes", "v1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(&again, "notes", "v1"); err != nil || !bytes.Equal(first.Bytes(), again.Bytes()) {
		t.Errorf("the same image has two lists: %v", err)
	}
	var bom struct {
		BOMFormat  string
		Components []struct{ Type, Name, Version, PURL string }
	}
	if err := json.Unmarshal(first.Bytes(), &bom); err != nil || bom.BOMFormat != "CycloneDX" {
		t.Fatalf("%v: %s", err, first.Bytes())
	}
	var out []string
	for _, c := range bom.Components {
		if c.Type == "operating-system" {
			out = append(out, c.Name+" "+c.Version)
			continue
		}
		out = append(out, c.PURL)
	}
	return out
}

const status = `Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12
Description: a library
 of more lines: and colons

Package: gone
Status: deinstall ok config-files
Version: 1
`

func TestRecords(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	inner := archive(t, file{name: "META-INF/maven/org.slf4j/slf4j-api/pom.properties", body: "version=2.0.17\ngroupId=org.slf4j\nartifactId=slf4j-api\n"})
	got := list(t, layer(t,
		file{name: "usr/lib/os-release", body: "ID=debian\nVERSION_ID=\"13\"\nVERSION_CODENAME=trixie\n"},
		file{name: "./var/lib/dpkg/status", body: status},
		file{name: "app/node_modules/express/package.json", body: `{"name":"express","version":"5.1.0"}`},
		file{name: "app/node_modules/@types/node/package.json", body: `{"name":"@types/node","version":"24.0.1"}`},
		file{name: "app/node_modules/express/lib/package.json", body: `{"name":"not-installed","version":"1"}`},
		file{name: "app/node_modules/broken/package.json", body: `{`},
		file{name: "venv/lib/python3.13/site-packages/flask-3.1.3.dist-info/METADATA", body: "Metadata-Version: 2.4\nName: Flask\nVersion: 3.1.3\n\nName: no\n"},
		file{name: "var/lib/gems/3.3.0/specifications/rack-3.1.8.gemspec", body: "x"},
		file{name: "app/vendor/composer/installed.json", body: `{"packages":[{"name":"monolog/monolog","version":"v3.9.0"}]}`},
		file{name: "usr/local/include/node/node_version.h", body: "#define NODE_MAJOR_VERSION 22\n#define NODE_MINOR_VERSION 23\n#define NODE_PATCH_VERSION 3\n"},
		file{name: "usr/local/go/VERSION", body: "go1.26.1\ntime x\n"},
		file{name: "app/app.jar", body: archive(t, file{name: "BOOT-INF/lib/slf4j.jar", body: inner}, file{name: "BOOT-INF/lib/plain-1.2.jar", body: archive(t)})},
		file{name: "app/server", body: string(program), mode: 0o111},
		file{name: "app/script", body: "#!/bin/sh\n" + strings.Repeat("#", 100), mode: 0o111},
	))
	want := []string{
		"debian 13", "pkg:composer/monolog/monolog@3.9.0", "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=trixie", "pkg:gem/rack@3.1.8",
		"pkg:generic/node@22.23.3", "pkg:golang/go@1.26.1", "pkg:maven/org.slf4j/slf4j-api@2.0.17", "pkg:maven/plain@1.2",
		"pkg:npm/%40types/node@24.0.1", "pkg:npm/express@5.1.0", "pkg:pypi/flask@3.1.3",
	}
	modules := 0
	got = slices.DeleteFunc(got, func(p string) bool { // of this test's program
		is := strings.HasPrefix(p, "pkg:golang/") && p != "pkg:golang/go@1.26.1"
		if is {
			modules++
		}
		return is
	})
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if modules < 2 {
		t.Errorf("%d modules of a program", modules)
	}
}

// TestLayers: what a later layer replaces or deletes is not in the image.
func TestLayers(t *testing.T) {
	pkg := func(dir, version string) file {
		return file{name: dir + "/package.json", body: `{"name":"` + dir[strings.LastIndex(dir, "/")+1:] + `","version":"` + version + `"}`}
	}
	first := func() *bytes.Buffer {
		return layer(t, pkg("a/node_modules/one", "1"), pkg("a/node_modules/two", "1"), pkg("b/node_modules/three", "1"))
	}
	for name, c := range map[string]struct {
		later []file
		want  []string
	}{
		"replaced": {[]file{pkg("a/node_modules/one", "2")}, []string{"pkg:npm/one@2", "pkg:npm/three@1", "pkg:npm/two@1"}},
		"deleted":  {[]file{{name: "a/node_modules/.wh.one"}}, []string{"pkg:npm/three@1", "pkg:npm/two@1"}},
		"folder":   {[]file{{name: ".wh.a"}}, []string{"pkg:npm/three@1"}},
		"emptied":  {[]file{{name: "a/"}, pkg("a/node_modules/four", "1"), {name: "a/.wh..wh..opq"}}, []string{"pkg:npm/four@1", "pkg:npm/three@1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := list(t, first(), layer(t, c.later...)); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestDamagedLayer(t *testing.T) {
	var s Scan
	whole := layer(t, file{name: "var/lib/dpkg/status", body: status}).Bytes()
	if err := s.Layer(bytes.NewReader(whole[:700])); err == nil {
		t.Error("a layer that ends in the middle was read")
	}
}

// TestHostileImages: an image has the memory and the time of a scan bounded, whatever its records hold.
func TestHostileImages(t *testing.T) {
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "P:%d\nV:1\n\n", i)
		}
		return b.String()
	}
	for name, files := range map[string][]file{
		"a record": {{name: "lib/apk/db/installed", body: many(11)}},
		"two":      {{name: "var/lib/dpkg/status.d/a", body: strings.NewReplacer("P:", "Package:", "V:", "Version:").Replace(many(6))}, {name: "lib/apk/db/installed", body: many(5)}},
	} {
		s := Scan{components: maxComponents - 10}
		if err := s.Layer(layer(t, files...)); !errs.Is(err, errs.ResourceExhausted) {
			t.Errorf("%s of too many packages: %v", name, err)
		}
	}
	long := `{"name":"` + strings.Repeat("x", maxField+1) + `","version":"1"}`
	if got := list(t, layer(t, file{name: "a/node_modules/a/package.json", body: long})); len(got) > 0 {
		t.Errorf("a name of %d bytes is kept", len(got[0]))
	}
	var away []file
	for i := range 2000 {
		away = append(away, file{name: fmt.Sprintf("d/.wh.%d", i)})
	}
	s := Scan{components: maxComponents - 11}
	if err := s.Layer(layer(t, file{name: "lib/apk/db/installed", body: many(10)}, file{name: "b/node_modules/b/package.json", body: `{"name":"b","version":"1"}`})); err != nil {
		t.Fatal(err)
	}
	s.looked = maxLooked - 1000
	if err := s.Layer(layer(t, away...)); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("too many deletions: %v", err)
	}
}

// TestHostileArchives: the entries of an archive may be the same bytes of it, many times.
func TestHostileArchives(t *testing.T) {
	var files []file
	for i := range 50 {
		files = append(files, file{name: fmt.Sprintf("%d/pom.properties", i), body: fmt.Sprintf("groupId=g\nartifactId=a%d\nversion=1\n", i) + strings.Repeat("#", 1000)})
	}
	text := archive(t, files...)
	left := int64(10_000)
	if n := len(javaArchive("a.jar", strings.NewReader(text), int64(len(text)), &left, false)); n == 0 || n > 11 {
		t.Errorf("%d packages of 10,000 bytes of packages of 1,000", n)
	}
	files = nil
	for range maxDirectory/1000 + 1 {
		files = append(files, file{name: strings.Repeat("x", 1000)})
	}
	text = archive(t, append(files, file{name: "pom/pom.properties", body: "groupId=g\nartifactId=a\nversion=1\n"})...)
	left = maxProgram
	if got := javaArchive("a.jar", strings.NewReader(text), int64(len(text)), &left, false); len(got) > 0 {
		t.Errorf("an archive with a list of files of more than %d bytes has %d packages", maxDirectory, len(got))
	}
}
