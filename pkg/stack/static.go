package stack

import (
	"fmt"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// Folders that sites are in.
var siteDirs = []string{".", "public", "dist", "build", "site", "_site", "docs"}

func hasStatic(s *source) bool { return s.siteDir() != "" }

func (s *source) siteDir() string {
	for _, d := range siteDirs {
		if s.has(strings.TrimPrefix(d+"/index.html", "./")) {
			return d
		}
	}
	return ""
}

func planStatic(s *source, p *Plan) error {
	dir := s.cfg.Build.Output
	if dir != "" {
		p.because("%s says that the site is in %s/", s.cfg.File, dir)
	} else if dir = s.siteDir(); dir != "" {
		where := dir + "/index.html"
		p.because("there is %s: a static site", strings.TrimPrefix(where, "./"))
	} else {
		return errs.New(errs.InvalidArgument, "there is no index.html in %s", strings.Join(siteDirs, ", ")).
			WithHint("set build.output in app.toml to the folder of the site")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "FROM runtime/static\nCOPY --chown=%s --exclude=.runtime --exclude=Procfile --exclude=app.toml %s/ /site/\n", owner, dir)
	finishStatic(&b)
	p.Dockerfile, p.Generated = b.String(), true
	p.Bases, p.Services = []string{"runtime/static"}, web(appconfig.DefaultPort)
	return nil
}

// finishStatic ends a Dockerfile that serves /site.
func finishStatic(b *strings.Builder) {
	fmt.Fprintf(b, "ENV PORT=%d\nUSER %s\n", appconfig.DefaultPort, owner)
}
