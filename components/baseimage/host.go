package baseimage

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"miren.dev/runtime/pkg/errs"
)

// host describes the distribution that this machine runs.
type host struct {
	id       string   // "debian"
	codename string   // "bookworm"
	sources  []string // one-line apt sources: "deb URI SUITE COMPONENT..."
	aptConf  string   // settings of apt that the images need as well
}

var readHost = sync.OnceValues(func() (*host, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "which distribution is this: %w", err)
	}
	h := parseRelease(release)
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	for _, f := range append([]string{"/etc/apt/sources.list"}, files...) {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		switch filepath.Ext(f) {
		case ".list":
			h.sources = append(h.sources, parseList(b, h.codename)...)
		case ".sources":
			h.sources = append(h.sources, parseDeb822(b, h.codename)...)
		}
	}
	if len(h.sources) == 0 {
		h.sources = defaultSources(h)
	}
	slices.Sort(h.sources)
	h.sources = slices.Compact(h.sources)
	// Mirrors that withhold packages have expired signatures; images accept what the host accepts.
	if out, err := exec.Command("apt-config", "dump").Output(); err == nil {
		h.aptConf = parseAptConfig(out)
	}
	return h, nil
})

// distribution is one release of a distribution. Mirrors have its packages besides the host's.
type distribution struct {
	id       string
	codename string
	number   string // number in tags of images: "12"
	versions languageVersions
}

// languageVersions are the versions of languages and servers that a release has packages of; empty: it has none.
type languageVersions struct{ python, ruby, php, java, rust, postgres, valkey, mariadb string }

// Releases that are still maintained, the oldest first.
var releases = []distribution{
	{"debian", "bookworm", "12", languageVersions{python: "3.11", ruby: "3.1", php: "8.2", java: "17", rust: "1.63", postgres: "15", mariadb: "10.11"}},
	{"debian", "trixie", "13", languageVersions{python: "3.13", ruby: "3.3", php: "8.4", java: "21", rust: "1.85", postgres: "17", valkey: "8.1", mariadb: "11.8"}},
	{"ubuntu", "jammy", "22.04", languageVersions{python: "3.10", ruby: "3.0", php: "8.1", java: "21", rust: "1.75", postgres: "14", mariadb: "10.6"}},
	{"ubuntu", "noble", "24.04", languageVersions{python: "3.12", ruby: "3.2", php: "8.3", java: "21", rust: "1.75", postgres: "16", valkey: "7.2", mariadb: "10.11"}},
}

// hostFor returns the host as if it ran another release of its distribution; empty: its own. NotFound when its sources
// do not have that release.
func hostFor(codename string) (*host, error) {
	h, err := readHost()
	if err != nil || codename == "" || codename == h.codename {
		return h, err
	}
	return h.as(codename)
}

func (h *host) as(codename string) (*host, error) {
	if !slices.ContainsFunc(releases, func(r distribution) bool { return r.id == h.id && r.codename == codename }) {
		return nil, errs.New(errs.NotFound, "this machine has the packages of %s, not of %s", strings.Join(h.releases(), " and "), codename).
			WithHint("use %s:%s, or let the server reach a registry", h.id, h.codename)
	}
	other := *h
	other.codename, other.sources = codename, nil
	for _, line := range h.sources {
		f := strings.Fields(line)
		f[2] = codename + strings.TrimPrefix(f[2], h.codename)
		other.sources = append(other.sources, strings.Join(f, " "))
	}
	return &other, nil
}

// releases are the code names whose packages the host's sources have: its own first.
func (h *host) releases() []string {
	names := []string{h.codename}
	for _, r := range releases {
		if r.id == h.id && r.codename != h.codename {
			names = append(names, r.codename)
		}
	}
	return names
}

// parseRelease reads os-release. A distribution that has no packages of
// Debian's kind gets Debian's.
func parseRelease(b []byte) *host {
	values := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[k] = strings.Trim(v, `"'`)
		}
	}
	h := &host{id: values["ID"], codename: values["VERSION_CODENAME"]}
	if h.codename == "" || h.id != "debian" && h.id != "ubuntu" {
		h.id, h.codename = "debian", "bookworm"
	}
	return h
}

func defaultSources(h *host) []string {
	if h.id == "ubuntu" {
		return []string{
			"deb http://archive.ubuntu.com/ubuntu " + h.codename + " main universe",
			"deb http://archive.ubuntu.com/ubuntu " + h.codename + "-updates main universe",
			"deb http://archive.ubuntu.com/ubuntu " + h.codename + "-security main universe",
		}
	}
	return []string{
		"deb http://deb.debian.org/debian " + h.codename + " main",
		"deb http://deb.debian.org/debian " + h.codename + "-updates main",
		"deb http://deb.debian.org/debian-security " + h.codename + "-security main",
	}
}

// own reports whether a source belongs to the distribution, not to a third
// party.
func own(suite, codename string, components []string) bool {
	if !slices.Contains(components, "main") {
		return false
	}
	for _, s := range []string{"", "-updates", "-security"} {
		if suite == codename+s {
			return true
		}
	}
	return false
}

// sourceLine drops the options: the keys of the distribution are known anyway.
func sourceLine(uri, suite string, components []string) string {
	keep := slices.DeleteFunc(slices.Clone(components), func(c string) bool { return c != "main" && c != "universe" })
	return "deb " + strings.TrimSuffix(uri, "/") + " " + suite + " " + strings.Join(keep, " ")
}

// parseList reads one-line sources.
func parseList(b []byte, codename string) []string {
	var out []string
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		if i, j := strings.Index(line, "["), strings.Index(line, "]"); i >= 0 && j > i {
			line = line[:i] + line[j+1:]
		}
		f := strings.Fields(line)
		if len(f) >= 4 && f[0] == "deb" && own(f[2], codename, f[3:]) {
			out = append(out, sourceLine(f[1], f[2], f[3:]))
		}
	}
	return out
}

// parseDeb822 reads stanzas.
func parseDeb822(b []byte, codename string) []string {
	var out []string
	fields := map[string][]string{}
	last := ""
	end := func() {
		if slices.Contains(fields["types"], "deb") && !slices.Contains(fields["enabled"], "no") {
			for _, uri := range fields["uris"] {
				for _, suite := range fields["suites"] {
					if own(suite, codename, fields["components"]) {
						out = append(out, sourceLine(uri, suite, fields["components"]))
					}
				}
			}
		}
		clear(fields)
		last = ""
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.TrimSpace(line) == "":
			end()
		case strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			fields[last] = append(fields[last], strings.Fields(line)...)
		default:
			k, v, ok := strings.Cut(line, ":")
			if ok {
				last = strings.ToLower(k)
				fields[last] = strings.Fields(v)
			}
		}
	}
	end()
	return out
}

// parseAptConfig keeps the settings that decide whether apt accepts the host's mirror.
func parseAptConfig(dump []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(dump)) {
		for _, key := range []string{"Acquire::Check-Valid-Until ", "Acquire::Check-Date "} {
			if strings.HasPrefix(line, key) {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}
