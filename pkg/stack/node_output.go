package stack

import (
	"encoding/json"
	"path"
	"regexp"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// outputs are where build tools put what they make. What a page finds by its
// path needs the page of a single-page app for every path.
var outputs = []struct {
	dependency, dir string
	single          bool // the tool makes single-page apps
}{
	{"react-scripts", "build", true}, {"@sveltejs/adapter-static", "build", false}, {"nuxt", ".output/public", false}, {"@react-router/dev", "build/client", true}, {"@remix-run/dev", "build/client", true}, {"gatsby", "public", false}, {"@11ty/eleventy", "_site", false}, {"@docusaurus/core", "build", false},
	{"vitepress", ".vitepress/dist", false}, {"@angular/cli", "dist", true}, {"astro", "dist", false}, {"next", "out", false}, {"vite", "dist", true},
	{"parcel", "dist", true}, {"@vue/cli-service", "dist", true}, {"webpack", "dist", true}, {"esbuild", "dist", true},
}

// outDir is where a configuration file says that the site goes.
var outDir = regexp.MustCompile(`\b(?:outDir|outputDir|distDir)\s*:\s*['"]([\w./-]+)['"]`)

// output is the folder of the built site, below the app's, and the file for paths that do not exist; empty: none.
func (a *nodeApp) output() (dir, fallback string, err error) {
	const page = "index.html"
	single := false
	for _, o := range outputs {
		if a.app.depends(o.dependency) {
			dir, single = o.dir, o.single
			if said := a.saidOutput(o.dependency); said != "" {
				dir = said
			}
			if a.s.cfg.Build.Output == "" {
				a.p.because("%s puts the site into %s/ (set build.output if it does not)", o.dependency, dir)
			}
			break
		}
	}
	if o := a.s.cfg.Build.Output; o != "" {
		dir = o
		a.outputFrom = a.s.cfg.File
	}
	if dir == "" {
		return "", "", errs.New(errs.InvalidArgument, "it is not known where the build script puts the site").
			WithHint("say so in .runtime/app.toml:\n[build]\noutput = \"dist\"")
	}
	if single {
		fallback = page
	}
	return dir, a.s.fallback(a.p, fallback), nil
}

// saidOutput is what the tool's configuration says, as far as it can be read without running it.
func (a *nodeApp) saidOutput(tool string) string {
	switch tool {
	case "@angular/cli":
		return a.angularOutput()
	case "vite", "astro", "@vue/cli-service":
		dir, from := a.s.viteOutput(a.dir)
		a.outputFrom = from
		return dir
	}
	return ""
}

// viteOutput is what the configuration of Vite, Astro or Vue in a folder says, and the file that says it; empty: nothing.
func (s *source) viteOutput(folder string) (dir, from string) {
	for _, stem := range []string{"vite.config", "astro.config", "vue.config"} {
		for _, end := range []string{".js", ".ts", ".mjs", ".mts", ".cjs"} {
			from := path.Join(folder, stem+end)
			text, err := s.read(from)
			if err != nil {
				continue
			}
			if m := outDir.FindStringSubmatch(text); m != nil {
				if dir := path.Clean(m[1]); !strings.HasPrefix(dir, "..") {
					return dir, from
				}
			}
		}
	}
	return "", ""
}

// angularOutput reads angular.json: its builder "application" puts what browsers load into a folder of its own.
func (a *nodeApp) angularOutput() string {
	text, err := a.s.read(path.Join(a.dir, "angular.json"))
	if err != nil {
		return ""
	}
	var f struct {
		Projects map[string]struct {
			Architect struct {
				Build struct {
					Builder string `json:"builder"`
					Options struct {
						OutputPath any `json:"outputPath"`
					} `json:"options"`
				} `json:"build"`
			} `json:"architect"`
		} `json:"projects"`
	}
	if json.Unmarshal([]byte(text), &f) != nil {
		return ""
	}
	for _, name := range sortedKeys(f.Projects) {
		b := f.Projects[name].Architect.Build
		dir, _ := b.Options.OutputPath.(string)
		if dir == "" {
			dir = "dist/" + name
		}
		if strings.HasSuffix(b.Builder, ":application") {
			dir += "/browser"
		}
		if b.Builder != "" {
			a.outputFrom = path.Join(a.dir, "angular.json")
			return path.Clean(dir)
		}
	}
	return ""
}
