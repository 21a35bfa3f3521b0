package baseimage

import (
	"context"
	"os/exec"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// language is one whose tools are packages of the distribution, in one version per release.
type language struct {
	title   string
	of      func(languageVersions) string
	files   string // where a source asks for a version, for people
	release bool   // the newest release is preferred, not the host's own
}

// offer is a version of a language and the release that has packages of it.
type offer struct{ version, codename string }

// offers are the versions that the host's sources have: the preferred first. own is the version of the host's release
// where it is not one of releases.
func offers(l language, h *host, own string) []offer {
	var list []offer
	for i := len(releases) - 1; i >= 0; i-- {
		r := releases[i]
		switch {
		case r.id != h.id || l.of(r.versions) == "":
		case r.codename == h.codename:
			if own == "" || l.release {
				own = l.of(r.versions)
			}
		default:
			list = append(list, offer{l.of(r.versions), r.codename})
		}
	}
	if own == "" {
		own = "3" // of Python
	}
	if slices.ContainsFunc(releases, func(r distribution) bool { return r.id == h.id && r.codename == h.codename && l.of(r.versions) == "" }) {
		return list // the host's own release has no packages of it
	}
	mine := offer{own, h.codename}
	if l.release && len(list) > 0 && compareVersions(list[0].version, own) > 0 {
		return append(list, mine)
	}
	return append([]offer{mine}, list...)
}

// choose returns the first version that want selects: "3.12", a range "3.10-3.13", or "" for any.
func choose(l language, list []offer, want, release string) (offer, error) {
	low, high, isRange := strings.Cut(want, "-")
	var have []string
	for _, o := range list {
		have = append(have, o.version)
		if release != "" && release != o.codename {
			continue
		}
		switch {
		case want == "", covers(want, o.version), strings.HasPrefix(want, o.version+"."):
			return o, nil
		case isRange && compareVersions(o.version, low) >= 0 && (high == "" || compareVersions(o.version, high) <= 0):
			return o, nil
		}
	}
	what := strings.TrimSpace(l.title + " " + want)
	if release != "" {
		what += " of " + release
	}
	return offer{}, errs.New(errs.NotFound, "%s cannot be had on this machine, which has packages of %s %s", what, l.title, strings.Join(have, " and ")).
		WithHint("ask for one of these (FROM in the Dockerfile; %s or build.version without one), or let the server reach a registry", l.files)
}

// hostVersion returns the version of a package, such as "3.11", or "" when the package index does not have it.
func hostVersion(ctx context.Context, pkg string) string {
	out, err := exec.CommandContext(ctx, "apt-cache", "show", "--no-all-versions", pkg).Output()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			if _, rest, epoch := strings.Cut(v, ":"); epoch {
				v = rest
			}
			f := strings.FieldsFunc(v, func(r rune) bool { return r == '.' || r == '-' || r == '+' })
			if len(f) >= 2 {
				return f[0] + "." + f[1]
			}
		}
	}
	return ""
}
