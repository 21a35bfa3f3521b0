package stack

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

func hasDeno(s *source) bool { return s.first("deno.json", "deno.jsonc") != "" }

var (
	jsonComment = regexp.MustCompile(`(?m)^\s*//.*$|,\s*//.*$|/\*(?s:.*?)\*/`)
	jsonComma   = regexp.MustCompile(`,(\s*[}\]])`)
	denoExport  = regexp.MustCompile(`(?m)^export default\b`)
	denoVersion = regexp.MustCompile(`^v?(\d+(?:\.\d+){0,2})$`)
)

// denoFiles are those that apps start with, by precedence.
var denoFiles = []string{"main.ts", "server.ts", "main.tsx", "main.js", "server.js", "index.ts", "mod.ts", "src/main.ts", "src/server.ts", "src/index.ts"}

func planDeno(s *source, p *Plan) error {
	file := s.first("deno.json", "deno.jsonc")
	text, err := s.read(file)
	if err != nil {
		return err
	}
	var config struct {
		Tasks map[string]any `json:"tasks"`
	}
	plain := jsonComma.ReplaceAllString(jsonComment.ReplaceAllString(text, ""), "$1")
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		if err := json.Unmarshal([]byte(plain), &config); err != nil {
			return errs.New(errs.InvalidArgument, "%s: %w", file, err)
		}
	}
	p.because("there is %s", file)
	tag, err := s.denoVersion(p)
	if err != nil {
		return err
	}
	entry := s.first(denoFiles...)
	command, from := "", ""
	site := s.denoSite(config.Tasks)
	if site {
		entry = "" // it is for browsers
	}
	switch {
	case site:
		p.because("%s has the task build, which is Vite's, and no task start: what it makes is served as a static site", file)
	case s.ownsCommands():
	case config.Tasks["start"] != nil:
		command, from = "deno task start", file
		p.because("%s has the task start: it is run", file)
	case entry == "":
		return errs.New(errs.InvalidArgument, "it is a Deno project, but how it starts is not known").
			WithHint("looked for the task start in %s, and for %s\nadd the task, or a Procfile with a line `web: <command>`", file, strings.Join(denoFiles[:5], ", "))
	default:
		from = entry
		source, err := s.read(entry)
		if err != nil {
			return err
		}
		if denoExport.MatchString(source) {
			command = "deno serve --allow-all --host 0.0.0.0 --port $PORT " + entry
			p.because("%s exports what answers: it is served by deno", entry)
		} else {
			command = "deno run --allow-all " + entry
			p.because("there is %s: it is run by deno", entry)
		}
	}
	s.saysPackages(p)
	install := "deno install"
	if s.has("deno.lock") {
		install += " --frozen"
		p.because("modules are those that deno.lock says")
	}
	if entry != "" {
		install += " --entrypoint " + entry
	}
	image := "runtime/deno" + tag
	var b strings.Builder
	stage := image
	if site {
		stage += " AS build"
	}
	fmt.Fprintf(&b, "FROM %s\n%s%s", stage, s.args(), s.packages())
	// What Deno fetches is a part of the image: it is read when the app runs.
	fmt.Fprintf(&b, "WORKDIR /app\nRUN mkdir -p /deno-dir && chown %[1]s /app /deno-dir\nENV PORT=%[2]d\nUSER %[1]s\nCOPY --chown=%[1]s . .\nRUN %[3]s\n", owner, appconfig.DefaultPort, install)
	p.fact(FactInstall, install, file)
	switch c := s.cfg.Build.Command; {
	case c != "":
		p.because("%s says that it is built by %q", s.cfg.File, c)
		p.fact(FactBuild, c, s.cfg.File)
		fmt.Fprintf(&b, "RUN %s\n", c)
	case config.Tasks["build"] != nil:
		p.because("%s has the task build", file)
		p.fact(FactBuild, "deno task build", file)
		b.WriteString("RUN deno task build\n")
	}
	p.Bases = []string{image}
	switch {
	case site:
		s.denoStatic(p, &b, file)
	case command != "":
		p.fact(FactStart, command, from)
		// Where the app names no port, Deno listens on this one.
		fmt.Fprintf(&b, "CMD %s\n", jsonList([]string{"/bin/sh", "-c", "export DENO_SERVE_ADDRESS=tcp:0.0.0.0:$PORT && exec " + command}))
	}
	p.Dockerfile, p.Generated, p.Services = b.String(), true, web(appconfig.DefaultPort)
	return nil
}

// viteBuild is a command by which Vite makes a site.
var viteBuild = regexp.MustCompile(`\bvite(@[\w.^~-]+)? build\b`)

// denoSite says whether a project is a site that its task build makes, and nothing that runs.
func (s *source) denoSite(tasks map[string]any) bool {
	build, _ := tasks["build"].(string)
	return tasks["start"] == nil && !s.ownsCommands() && s.has("index.html") && viteBuild.MatchString(build) && !strings.Contains(build, "--ssr")
}

// denoStatic ends a Dockerfile, whose only stage is called build, with one that serves the site.
func (s *source) denoStatic(p *Plan, b *strings.Builder, from string) {
	dir := "dist"
	if said, where := s.viteOutput("."); said != "" {
		dir, from = said, where
	}
	if o := s.cfg.Build.Output; o != "" {
		dir, from = o, s.cfg.File
	}
	p.fact(FactStart, "files of "+dir+"/", from)
	fmt.Fprintf(b, "\nFROM runtime/static\nCOPY --from=build --chown=%s %s/ /site/\n", owner, path.Join("/app", dir))
	finishStatic(b, s.fallback(p, "index.html"))
	p.Bases = append(p.Bases, "runtime/static")
}

// denoVersion is what comes after the name of the image; empty for its default.
func (s *source) denoVersion(p *Plan) (string, error) {
	want, where := s.cfg.Build.Version, s.cfg.File
	for _, f := range []string{".deno-version", ".dvmrc", ".tool-versions"} {
		if want != "" {
			break
		}
		var err error
		if want, err = s.versionIn(f, "deno"); err != nil {
			return "", err
		}
		where = f
	}
	if want == "" {
		p.because("no version of Deno is asked for: 2")
		p.fact(FactVersion, "Deno 2", "")
		return "", nil
	}
	m := denoVersion.FindStringSubmatch(want)
	if m == nil {
		return "", errs.New(errs.InvalidArgument, "%s asks for Deno %q, which is not a version", where, want).WithHint("write one such as 2.9")
	}
	p.because("%s asks for Deno %s", where, m[1])
	p.fact(FactVersion, "Deno "+m[1], where)
	return ":" + m[1], nil
}
