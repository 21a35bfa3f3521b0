package baseimage

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/stack"
)

// Ref names a base image that this machine can make.
type Ref struct {
	Name string // debian, go, go-cgo, node, python, static, sandbox, deno, s3, or one of packagedImages
	// Version is the version in the request: "1.26", "20"; of our own images of packages also a range: "3.10-3.13"; of
	// sandbox one of SandboxImages; empty: the default.
	Version string
	// Release is the code name of the distribution's release that it is made of; empty: any.
	Release string
	// Note tells people how the image differs from the one that the name promises; empty: it does not.
	Note string
}

func (r Ref) String() string {
	return strings.Join(slices.DeleteFunc([]string{r.Name, r.Version, r.Release}, func(s string) bool { return s == "" }), " ")
}

// Prefixes of the names that generated Dockerfiles use.
const Prefix = "runtime/"

// Names that can be made here, for messages.
const known = "debian, golang, node, python, scratch, and runtime/ with sandbox, php, ruby, java, rust, deno, postgres, valkey, mysql or s3"

var leadingVersion = regexp.MustCompile(`^v?(\d+(?:\.\d+){0,2})(?:-|$)`)

// Lookup returns the image that stands for a name in a Dockerfile. NotFound,
// with a hint, when this machine can make none.
func Lookup(name string) (Ref, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return Ref{}, errs.New(errs.InvalidArgument, "image name %q: %w", name, err)
	}
	if _, pinned := named.(reference.Digested); pinned {
		return Ref{}, errs.New(errs.NotFound, "image %s is pinned to a digest, which only a registry can give", name).
			WithHint("remove the digest, or let the server reach a registry")
	}
	tag := ""
	if t, ok := named.(reference.Tagged); ok && t.Tag() != "latest" {
		tag = t.Tag()
	}
	familiar := reference.FamiliarName(named)
	version := ""
	if m := leadingVersion.FindStringSubmatch(tag); m != nil {
		version = m[1]
	}
	note := ""
	if strings.Contains(tag, "alpine") {
		note = fmt.Sprintf("%s stands for an image made from Debian packages: it has apt-get, not apk", name)
	}
	ref := Ref{Version: version, Release: releaseIn(tag), Note: note}
	if rest, ok := strings.CutPrefix(familiar, Prefix); ok && lookupPackaged(rest) != nil {
		ref.Name, ref.Version = rest, tag // may be a range
		return ref, nil
	}
	switch strings.TrimPrefix(familiar, Prefix) {
	case "debian":
		return Ref{Name: "debian", Release: cmp.Or(ref.Release, debianNumber(tag))}, nil
	case "buildpack-deps":
		return Ref{Name: "c", Release: ref.Release}, nil
	case "go", "go-cgo", "node":
		ref.Name = strings.TrimPrefix(familiar, Prefix)
		return ref, nil
	case "golang":
		ref.Name = "go-cgo"
		if note != "" {
			ref.Name = "go"
		}
		return ref, nil
	case "python":
		ref.Name = "python"
		if strings.HasPrefix(familiar, Prefix) {
			ref.Version = tag // may be a range
		}
		return ref, nil
	case "static":
		if strings.HasPrefix(familiar, Prefix) {
			return Ref{Name: "static"}, nil
		}
	case "deno":
		if strings.HasPrefix(familiar, Prefix) {
			return Ref{Name: "deno", Version: version}, nil
		}
	case "s3":
		if strings.HasPrefix(familiar, Prefix) {
			return Ref{Name: "s3", Version: version}, nil
		}
	case "sandbox":
		if strings.HasPrefix(familiar, Prefix) {
			return Ref{Name: "sandbox", Version: tag}, nil
		}
	case "ubuntu":
		host, err := readHost()
		if err == nil && host.id == "ubuntu" {
			return Ref{Name: "debian"}, nil
		}
	case "alpine", "busybox":
		return Ref{}, errs.New(errs.NotFound, "image %s cannot be made from the packages of this machine", name).
			WithHint("use debian:bookworm-slim, or let the server reach a registry")
	}
	return Ref{}, errs.New(errs.NotFound, "no registry is reachable and image %s cannot be made on this machine", name).
		WithHint("images that can be: %s", known)
}

// releaseIn is the code name of a release in a tag: "bookworm" of "22-bookworm-slim"; empty for none.
func releaseIn(tag string) string {
	for part := range strings.SplitSeq(tag, "-") {
		for _, name := range []string{"buster", "bullseye", "bookworm", "trixie", "jammy", "noble"} {
			if part == name {
				return name
			}
		}
	}
	return ""
}

// debianNumber is the code name for the number in a tag of debian: "12.5-slim"; empty for the host's release.
func debianNumber(tag string) string {
	major, _, _ := strings.Cut(strings.TrimSuffix(tag, "-slim"), ".")
	if major == "11" {
		return "bullseye"
	}
	for _, r := range releases {
		if r.id == "debian" && r.number == major {
			return r.codename
		}
	}
	return ""
}

// recipe returns how to make an image.
func (s *Store) recipe(ctx context.Context, ref Ref) (*recipe, error) {
	switch ref.Name {
	case "debian":
		return s.debian(ref.Release)
	case "static":
		return s.static()
	case "sandbox":
		return s.sandbox(ctx, ref.Version)
	case "python":
		return s.python(ctx, ref.Version, ref.Release)
	case "s3":
		return s.objectStore(ref.Version, ref.Release)
	case "deno":
		return s.deno(ctx, cmp.Or(ref.Version, defaultDeno), ref.Release)
	case "node":
		return s.node(ctx, cmp.Or(ref.Version, strconv.Itoa(stack.DefaultNode)), ref.Release)
	}
	if p := lookupPackaged(ref.Name); p != nil {
		return s.packaged(ctx, p, ref.Version, ref.Release)
	}
	var parent *recipe
	var err error
	switch ref.Name {
	case "go":
		parent, err = s.debian(ref.Release)
	case "go-cgo", "c":
		parent, err = s.withPackages("c", "1", ref.Release, cgoPackages)
	default:
		err = errs.New(errs.NotFound, "no base image %s", ref.Name)
	}
	if err != nil {
		return nil, err
	}
	if ref.Name == "c" {
		return parent, nil
	}
	return s.golang(ctx, ref.Name, cmp.Or(ref.Version, stack.DefaultGo), ref.Release, parent)
}

// covers reports whether want selects version: "20" and "20.1" select "20.1.3".
func covers(want, version string) bool {
	return version == want || strings.HasPrefix(version, want+".")
}

// product is software that a registry offers in versions.
type product struct {
	name string
	list func(context.Context) ([]string, error)
	// offered returns nil for a version that can be downloaded, NotFound for
	// one that is listed but that a mirror still withholds.
	offered func(context.Context, string) error
}

// choose returns the newest version that want selects and that can be
// downloaded.
func (s *Store) choose(ctx context.Context, p product, want string) (string, error) {
	v, err := s.chooseFrom(ctx, p, want, false)
	if errs.Is(err, errs.NotFound) { // perhaps it is newer than the last answer
		return s.chooseFrom(ctx, p, want, true)
	}
	return v, err
}

func (s *Store) chooseFrom(ctx context.Context, p product, want string, now bool) (string, error) {
	all, err := s.versions(ctx, p.name, now, p.list)
	if err != nil {
		return "", errs.Wrap(err, "list versions of %s", p.name)
	}
	var fit []string
	for _, v := range all {
		if covers(want, v) && plainVersion.MatchString(v) {
			fit = append(fit, v)
		}
	}
	slices.SortFunc(fit, func(a, b string) int { return compareVersions(b, a) })
	const tries = 8
	for _, v := range fit[:min(tries, len(fit))] {
		answer, err := s.versions(ctx, p.name+"@"+v, now, func(ctx context.Context) ([]string, error) {
			err := p.offered(ctx, v)
			if errs.Is(err, errs.NotFound) {
				return []string{"no"}, nil
			}
			return []string{"yes"}, err
		})
		if err != nil {
			return "", err
		}
		if answer[0] == "yes" {
			return v, nil
		}
	}
	return "", errs.New(errs.NotFound, "no version of %s fits %q", p.name, want)
}

var plainVersion = regexp.MustCompile(`^\d+(\.\d+)*$`)

func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m, _ = strconv.Atoi(x[i])
		}
		if i < len(y) {
			n, _ = strconv.Atoi(y[i])
		}
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return 0
}
