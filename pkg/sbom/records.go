package sbom

import (
	"archive/zip"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"iter"
	"math"
	"path"
	"regexp"
	"strings"

	"github.com/package-url/packageurl-go"

	"miren.dev/runtime/pkg/errs"
)

// records are the files in which package managers say what they installed.
var records = []struct {
	match func(name string) bool
	read  func(name string, body []byte) []component
}{
	{isOne("var/lib/dpkg/status"), dpkg},
	{below("var/lib/dpkg/status.d/"), dpkg},
	{isOne("lib/apk/db/installed"), apk},
	{matches(`(^|/)node_modules/(@[^/]+/)?[^/]+/package\.json$`), npm},
	{matches(`\.dist-info/METADATA$|\.egg-info(/PKG-INFO)?$`), python},
	{matches(`(^|/)specifications/(default/)?[^/]+\.gemspec$`), gem},
	{matches(`(^|/)vendor/composer/installed\.json$`), composer},
	{matches(`(^|/)include/node/node_version\.h$`), nodejs},
	{matches(`(^|/)usr/local/go/VERSION$`), golang},
}

func isOne(want string) func(string) bool { return func(name string) bool { return name == want } }

func below(dir string) func(string) bool {
	return func(name string) bool { return strings.HasPrefix(name, dir) && !strings.HasSuffix(name, ".md5sums") }
}

func matches(expression string) func(string) bool { return regexp.MustCompile(expression).MatchString }

// variables reads lines of NAME=value.
func variables(body []byte) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(string(body)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			out[k] = strings.Trim(v, `"'`)
		}
	}
	return out
}

// stanzas reads paragraphs of lines with a field each; lines of a longer field begin with a space.
func stanzas(body []byte) iter.Seq[map[string]string] {
	return func(yield func(map[string]string) bool) {
		now := map[string]string{}
		for line := range strings.Lines(string(body) + "\n\n") {
			line = strings.TrimRight(line, "\n")
			if line == "" {
				if len(now) > 0 && !yield(now) {
					return
				}
				clear(now)
				continue
			}
			if k, v, ok := strings.Cut(line, ":"); ok && line[0] != ' ' {
				now[k] = strings.TrimSpace(v)
			}
		}
	}
}

func dpkg(_ string, body []byte) (out []component) {
	for p := range stanzas(body) {
		if status := p["Status"]; status != "" && !strings.HasSuffix(status, " installed") {
			continue
		}
		out = append(out, component{kind: packageurl.TypeDebian, name: p["Package"], version: p["Version"], architecture: p["Architecture"], ofTheDistributor: true})
	}
	return out
}

func apk(_ string, body []byte) (out []component) {
	for p := range stanzas(body) {
		out = append(out, component{kind: packageurl.TypeApk, name: p["P"], version: p["V"], architecture: p["A"], ofTheDistributor: true})
	}
	return out
}

func npm(_ string, body []byte) []component {
	var p struct{ Name, Version string }
	if json.Unmarshal(body, &p) != nil {
		return nil
	}
	c := component{kind: packageurl.TypeNPM, name: p.Name, version: p.Version}
	if scope, name, ok := strings.Cut(p.Name, "/"); ok {
		c.namespace, c.name = scope, name
	}
	return []component{c}
}

func python(_ string, body []byte) []component {
	head, _, _ := bytes.Cut(body, []byte("\n\n"))
	first, stop := iter.Pull(stanzas(head))
	defer stop()
	p, ok := first()
	if !ok {
		return nil
	}
	return []component{{kind: packageurl.TypePyPi, name: strings.ToLower(separators.ReplaceAllString(p["Name"], "-")), version: p["Version"]}}
}

// separators are what names of PyPI do not tell apart.
var separators = regexp.MustCompile(`[-_.]+`)

var gemName = regexp.MustCompile(`^(.+)-(\d[^-]*)(-[a-z].*)?\.gemspec$`)

func gem(name string, _ []byte) []component {
	m := gemName.FindStringSubmatch(path.Base(name))
	if m == nil {
		return nil
	}
	return []component{{kind: packageurl.TypeGem, name: m[1], version: m[2]}}
}

func composer(_ string, body []byte) (out []component) {
	var installed struct {
		Packages []struct{ Name, Version string }
	}
	if json.Unmarshal(body, &installed) != nil {
		return nil
	}
	for _, p := range installed.Packages {
		vendor, name, _ := strings.Cut(p.Name, "/")
		out = append(out, component{kind: packageurl.TypeComposer, namespace: vendor, name: name, version: strings.TrimPrefix(p.Version, "v")})
	}
	return out
}

var nodeVersion = regexp.MustCompile(`(?m)^#define NODE_(?:MAJOR|MINOR|PATCH)_VERSION (\d+)$`)

func nodejs(_ string, body []byte) []component {
	var parts []string
	for _, m := range nodeVersion.FindAllSubmatch(body, -1) {
		parts = append(parts, string(m[1]))
	}
	if len(parts) != 3 {
		return nil
	}
	return []component{{kind: packageurl.TypeGeneric, name: "node", version: strings.Join(parts, ".")}}
}

func golang(_ string, body []byte) []component {
	line, _, _ := strings.Cut(string(body), "\n")
	return []component{{kind: packageurl.TypeGolang, name: "go", version: strings.TrimPrefix(strings.TrimSpace(line), "go")}}
}

// goProgram returns the modules of a program of Go; none for another program.
func goProgram(r io.ReaderAt) []component {
	info, err := buildinfo.Read(r)
	if err != nil {
		return nil
	}
	out := []component{{kind: packageurl.TypeGolang, name: "stdlib", version: strings.TrimPrefix(info.GoVersion, "go")}}
	module := func(p, version string) {
		dir, name := path.Split(p)
		out = append(out, component{kind: packageurl.TypeGolang, namespace: strings.TrimSuffix(dir, "/"), name: name, version: version})
	}
	module(info.Main.Path, info.Main.Version)
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		module(d.Path, d.Version)
	}
	return out
}

// javaArchive returns the packages of Maven in an archive, and in the archives directly inside it. left bounds the bytes
// that are decompressed, since entries may be the same part of the archive.
func javaArchive(name string, r io.ReaderAt, size int64, left *int64, isInner bool) (out []component) {
	b := &bounded{ReaderAt: r, left: maxDirectory}
	z, err := zip.NewReader(b, size)
	if err != nil {
		return nil
	}
	b.left = math.MaxInt64
	for _, f := range z.File {
		inner, most := path.Ext(f.Name) == ".jar" && !isInner, uint64(maxRecord)
		if inner {
			most = maxInner
		}
		if f.UncompressedSize64 > most || !inner && !strings.HasSuffix(f.Name, "/pom.properties") {
			continue
		}
		if *left <= 0 {
			break
		}
		in, err := f.Open()
		if err != nil {
			continue
		}
		body, err := io.ReadAll(io.LimitReader(in, int64(most)))
		in.Close()
		*left -= int64(len(body)) + 1
		if err != nil {
			continue
		}
		if inner {
			out = append(out, javaArchive(path.Base(f.Name), bytes.NewReader(body), int64(len(body)), left, true)...)
			continue
		}
		v := variables(body)
		out = append(out, component{kind: packageurl.TypeMaven, namespace: v["groupId"], name: v["artifactId"], version: v["version"]})
	}
	if m := jarName.FindStringSubmatch(name); len(out) == 0 && m != nil {
		out = append(out, component{kind: packageurl.TypeMaven, name: m[1], version: m[2]})
	}
	return out
}

// jarName is the name of an archive that does not say what it is.
var jarName = regexp.MustCompile(`^(.+)-(\d[\w.]*(?:-[\w.]+)*)\.jar$`)

// bounded fails when more than left bytes are read.
type bounded struct {
	io.ReaderAt
	left int64
}

func (b *bounded) ReadAt(p []byte, offset int64) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errs.New(errs.ResourceExhausted, "the archive lists too many files")
	}
	return b.ReaderAt.ReadAt(p, offset)
}
