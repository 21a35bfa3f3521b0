package sbom

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
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
