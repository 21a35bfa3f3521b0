package stack

import (
	"path"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// nodeServer is a framework whose build makes a server, and how templates that have no usable start script run it.
type nodeServer struct {
	name       string
	dependency string
	also       string // another dependency that decides it; empty: none
	command    string // serves what the build made
	config     string // stem of the configuration file
	static     string // text in it that says that the build makes files only
}

// The frameworks, the most specific first.
var nodeServers = []nodeServer{
	{"Nuxt", "nuxt", "", "node .output/server/index.mjs", "nuxt.config", "ssr: false"},
	{"SvelteKit", "@sveltejs/kit", "@sveltejs/adapter-node", "node build", "svelte.config", ""},
	{"Astro", "astro", "@astrojs/node", "HOST=0.0.0.0 node ./dist/server/entry.mjs", "", ""},
	{"Next.js", "next", "", "next start", "next.config", "output: 'export'"},
	{"Remix", "@remix-run/dev", "@remix-run/serve", "remix-serve ./build/server/index.js", "vite.config", "ssr: false"},
	{"React Router", "@react-router/dev", "@react-router/serve", "react-router-serve ./build/server/index.js", "react-router.config", "ssr: false"},
	{"Nest", "@nestjs/core", "", "node dist/main", "", ""},
}

// developmentStart is a start script of a framework that compiles the source again, or watches it.
func developmentStart(start string) bool {
	for _, word := range []string{"nest start", "nuxt dev", "nuxi dev", "next dev", "astro dev", "astro preview", "vite dev", "vite preview", "remix dev", "remix vite:dev", "react-router dev"} {
		if rest, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(start), "npx "), word); ok && (rest == "" || rest[0] == ' ') {
			return true
		}
	}
	return false
}

// frameworkStart is the command of a framework's server, where the project has no start script of its own for
// production; empty: there is one, or no such framework.
func (a *nodeApp) frameworkStart(start string) (string, error) {
	if start != "" && !developmentStart(start) || a.build == "" {
		return "", nil
	}
	if a.app.depends("@sveltejs/kit") && a.app.depends("@sveltejs/adapter-auto") && !a.app.depends("@sveltejs/adapter-node") && !a.app.depends("@sveltejs/adapter-static") {
		return "", errs.New(errs.InvalidArgument, "%s has SvelteKit's adapter-auto, which builds nothing that runs here", a.file("package.json")).
			WithHint("looked for @sveltejs/adapter-node and @sveltejs/adapter-static: `npm install -D @sveltejs/adapter-node`, and import it in svelte.config.js")
	}
	for _, f := range nodeServers {
		if !a.app.depends(f.dependency) || f.also != "" && !a.app.depends(f.also) {
			continue
		}
		if file := a.configSays(f.config, f.static); file != "" {
			a.p.because("%s is there, and %s says that its build makes files only", f.name, file)
			return "", nil
		}
		if prod := a.app.Scripts["start:prod"]; prod != "" {
			a.p.because("%s has a script start:prod, for %s: %s", a.file("package.json"), f.name, prod)
			return prod, nil
		}
		a.p.because("%s depends on %s, and has no start script for production: %s serves what %s builds", a.file("package.json"), f.dependency, f.command, f.name)
		return f.command, nil
	}
	return "", nil
}

// configSays returns the configuration file with that stem that has a text, whatever its quotes; empty for none.
func (a *nodeApp) configSays(stem, text string) string {
	if stem == "" || text == "" {
		return ""
	}
	for _, end := range []string{".js", ".ts", ".mjs", ".mts", ".cjs"} {
		file := path.Join(a.dir, stem+end)
		body, err := a.s.read(file)
		if err == nil && strings.Contains(strings.ReplaceAll(body, `"`, "'"), text) {
			return file
		}
	}
	return ""
}
