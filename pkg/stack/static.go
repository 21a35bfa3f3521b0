package stack

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// Folders that sites are in.
var siteDirs = []string{".", "public", "dist", "build", "site", "_site", "docs"}

// noFallback is the value of build.fallback for sites that answer 404.
const noFallback = "none"

// rewriteAll is the line of a _redirects file by which other hosts know a single-page app.
var rewriteAll = regexp.MustCompile(`(?m)^/\*\s+/(index\.html)?\s+200`)

// notPlain are characters that need quoting in the option of a Dockerfile's COPY, where nothing can be quoted.
var notPlain = regexp.MustCompile(`[^\w.@+-]`)

func hasStatic(s *source) bool { return s.siteDir() != "" }

func (s *source) siteDir() string {
	for _, d := range siteDirs {
		if s.has(path.Join(d, "index.html")) {
			return d
		}
	}
	return ""
}

func planStatic(s *source, p *Plan) error {
	dir := s.cfg.Build.Output
	switch {
	case dir != "" && !s.isDir(dir):
		return errs.New(errs.InvalidArgument, "there is no folder %s", dir).
			WithHint("build.output in %s is the folder of the site; is it empty, or ignored by .gitignore?", s.cfg.File)
	case dir != "":
		p.because("%s says that the site is in %s/", s.cfg.File, dir)
	default:
		if dir = s.siteDir(); dir == "" {
			return errs.New(errs.InvalidArgument, "there is no index.html in %s", strings.Join(siteDirs, ", ")).
				WithHint("set build.output in app.toml to the folder of the site")
		}
		p.because("there is %s: a static site", path.Join(dir, "index.html"))
	}
	fallback := s.fallback(p, s.siteFallback(dir))
	excludes := ""
	for _, name := range append([]string{".runtime", "Procfile", "app.toml"}, s.danglingLinks(dir)...) {
		excludes += " --exclude=" + notPlain.ReplaceAllString(name, "?")
	}
	for _, name := range s.danglingLinks(dir) {
		p.warn("the link %s leads nowhere and is left out", path.Join(dir, name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "FROM runtime/static\nCOPY --chown=%s%s %s/ /site/\n", owner, excludes, dir)
	finishStatic(&b, fallback)
	from := path.Join(dir, "index.html")
	if s.cfg.Build.Output != "" {
		from = s.cfg.File
	}
	p.fact(FactStart, "files of "+dir+"/", from)
	p.Dockerfile, p.Generated = b.String(), true
	p.Bases, p.Services = []string{"runtime/static"}, web(appconfig.DefaultPort)
	return nil
}

// Where the configuration of other hosts says that every path shows one page.
var (
	netlifyAll = regexp.MustCompile(`(?s)from\s*=\s*"/\*"[^\[]*?to\s*=\s*"/(?:index\.html)?"[^\[]*?status\s*=\s*200`)
	vercelAll  = regexp.MustCompile(`(?s)"source"\s*:\s*"/?\(\.\*\)"\s*,\s*"destination"\s*:\s*"/(?:index\.html)?"`)
	hostingAll = regexp.MustCompile(`(?s)"source"\s*:\s*"\*\*"\s*,\s*"destination"\s*:\s*"/index\.html"`)
)

// siteFallback is the file for paths that do not exist, as the files of a site say for other hosts; empty for none.
func (s *source) siteFallback(dir string) string {
	if s.has(path.Join(dir, "200.html")) {
		return "200.html"
	}
	for _, f := range []struct {
		file string
		all  *regexp.Regexp
	}{{path.Join(dir, "_redirects"), rewriteAll}, {"netlify.toml", netlifyAll}, {"vercel.json", vercelAll}, {"firebase.json", hostingAll}} {
		if text, err := s.read(f.file); err == nil && f.all.MatchString(text) {
			return "index.html"
		}
	}
	return ""
}

// fallback is the file for paths that do not exist, where detected is what was found out; empty: none.
func (s *source) fallback(p *Plan, detected string) string {
	switch said := s.cfg.Build.Fallback; {
	case said == noFallback:
		return ""
	case said != "":
		p.because("%s says that paths which do not exist show %s", s.cfg.File, said)
		return said
	case detected != "":
		p.because("it is a single-page app: paths that do not exist show %s (set build.fallback to \"none\" if they must not)", detected)
	}
	return detected
}

// finishStatic ends a Dockerfile that serves /site.
func finishStatic(b *strings.Builder, fallback string) {
	if fallback != "" {
		fmt.Fprintf(b, "ENV STATIC_FALLBACK=/%s\n", fallback)
	}
	fmt.Fprintf(b, "ENV PORT=%d\nUSER %s\n", appconfig.DefaultPort, owner)
}
