package stack

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

// Scripts that serve for development: what they show is static once built.
var devServer = regexp.MustCompile(`^(npx )?(vite|vite dev|vite preview|react-scripts start|webpack serve|webpack-dev-server|parcel|ng serve|astro dev|astro preview|gatsby develop|vue-cli-service serve)(\s|$)`)

// Files that apps are in when nothing else says so.
var nodeFiles = []string{"server.js", "index.js", "app.js", "main.js", "server.mjs", "index.mjs", "src/server.js", "src/index.js", "src/app.js"}

// start is the command that serves; empty for a site that is static once built.
func (a *nodeApp) start() (string, error) {
	if web := a.s.cfg.Service(appconfig.DefaultService); web != nil && len(web.Command) > 0 {
		return "node", nil // the service has its own
	}
	j, p := a.app, a.p
	start := j.Scripts["start"]
	a.serveFrom = a.file("package.json")
	if command, err := a.frameworkStart(start); command != "" || err != nil {
		return command, err
	}
	switch {
	case start != "" && !(devServer.MatchString(start) && a.build != ""):
		p.because("%s has a start script: %s", a.file("package.json"), start)
		// The script's command is run without the package manager, so that
		// signals reach it and nothing stands between it and the app.
		if j.Scripts["prestart"] == "" && j.Scripts["poststart"] == "" && !strings.Contains(start, "$npm_") {
			return start, nil
		}
		return a.m.run + " start", nil
	case start == "" && j.Main != "" && a.has(j.Main):
		p.because("%s has no start script; its main file is %s", a.file("package.json"), j.Main)
		return "node " + quote(j.Main), nil
	}
	if start == "" && a.m.name == bunManager.name {
		for _, f := range []string{j.Module, "index.ts", "src/index.ts", "server.ts", "src/server.ts"} {
			if f != "" && a.has(f) {
				p.because("%s has no start script; there is %s, which Bun runs", a.file("package.json"), f)
				a.serveFrom = a.file(f)
				return "bun " + quote(f), nil
			}
		}
	}
	if start == "" {
		for _, f := range nodeFiles {
			if a.has(f) {
				p.because("%s has no start script; there is %s", a.file("package.json"), f)
				a.serveFrom = a.file(f)
				return "node " + f, nil
			}
		}
	}
	if a.build != "" {
		if start != "" {
			p.because("the start script (%s) is for development: what the build script makes is served as a static site", start)
		} else {
			p.because("there is no start script: what the build script makes is served as a static site")
		}
		return "", nil
	}
	return "", errs.New(errs.InvalidArgument, "%s has neither a start script nor a main file that exists", a.file("package.json")).
		WithHint("add \"start\" to \"scripts\", or a line `web: <command>` to a Procfile")
}

// bins are commands that are called otherwise than the package that has them.
var bins = map[string]string{
	"tsc": "typescript", "nest": "@nestjs/cli", "ng": "@angular/cli", "babel": "@babel/cli", "babel-node": "@babel/node", "remix": "@remix-run/dev",
	"remix-serve": "@remix-run/serve", "react-router": "@react-router/dev", "react-router-serve": "@react-router/serve", "dotenv": "dotenv-cli",
	"sequelize": "sequelize-cli", "sequelize-cli": "sequelize-cli", "swc": "@swc/cli", "strapi": "@strapi/strapi", "eleventy": "@11ty/eleventy",
	"vue-cli-service": "@vue/cli-service", "docusaurus": "@docusaurus/core", "svelte-kit": "@sveltejs/kit", "http-server": "http-server", "run-s": "npm-run-all",
	"run-p": "npm-run-all", "rw": "@redwoodjs/core", "keystone": "@keystone-6/core", "medusa": "@medusajs/medusa", "redocly": "@redocly/cli",
	"graphql-codegen": "@graphql-codegen/cli", "ts-node-script": "ts-node", "cross-env-shell": "cross-env", "tsx": "tsx", "nuxi": "nuxi",
}

var (
	commandWord = regexp.MustCompile(`[^\s"'=;&|()]+`)
	runScript   = regexp.MustCompile(`^(?:npm|pnpm|yarn|bun)\s+(?:run(?:-script)?\s+)?([\w:.-]+)`)
)

// devNeeded returns the development dependencies that commands use.
func (a *nodeApp) devNeeded(commands []string) []string {
	dev := func(name string) bool {
		for _, j := range []*packageJSON{a.app, a.root} {
			if _, ok := j.Dependencies[name]; ok {
				return false
			}
		}
		_, ok := a.app.DevDependencies[name]
		_, also := a.root.DevDependencies[name]
		return ok || also
	}
	var used []string
	seen := map[string]bool{}
	for i := 0; i < len(commands); i++ {
		if seen[commands[i]] {
			continue
		}
		seen[commands[i]] = true
		for part := range strings.FieldsFuncSeq(commands[i], func(r rune) bool { return r == ';' || r == '&' || r == '|' }) {
			if m := runScript.FindStringSubmatch(strings.TrimSpace(part)); m != nil {
				for _, name := range []string{"pre" + m[1], m[1], "post" + m[1]} {
					if script := a.app.Scripts[name]; script != "" {
						commands = append(commands, script)
					}
				}
			}
		}
		for _, w := range commandWord.FindAllString(commands[i], -1) {
			name := packageOf(w)
			for _, n := range []string{name, bins[name], bins[path.Base(w)]} {
				if n != "" && dev(n) {
					used = append(used, n)
				}
			}
		}
	}
	return unique(used)
}

// packageOf is the package that a word of a command may be of: "ts-node" of
// "ts-node/register" and of "node_modules/.bin/ts-node", "@swc/node" of "@swc/node/register".
func packageOf(word string) string {
	word = strings.TrimPrefix(word, "./")
	if rest, ok := strings.CutPrefix(word, "node_modules/"); ok {
		word = strings.TrimPrefix(rest, ".bin/")
	}
	parts := strings.SplitN(word, "/", 3)
	if strings.HasPrefix(word, "@") && len(parts) > 1 {
		return parts[0] + "/" + strings.SplitN(parts[1], "@", 2)[0]
	}
	return strings.SplitN(parts[0], "@", 2)[0]
}

// usesManager says whether commands call a package manager that the image does not have by itself.
func usesManager(m manager, commands []string) bool {
	return m.program != "" && slices.ContainsFunc(commands, func(c string) bool {
		return slices.Contains(commandWord.FindAllString(c, -1), m.name)
	})
}
