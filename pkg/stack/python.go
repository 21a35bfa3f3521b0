package stack

import (
	"fmt"
	"strings"

	"miren.dev/runtime/pkg/appconfig"
)

const pipCache = "--mount=type=cache,target=/root/.cache/pip"

func hasPython(s *source) bool {
	if s.has("requirements.txt") || s.has("Pipfile") {
		return true
	}
	// Projects of other languages have these files too, for their tools.
	return (s.has("pyproject.toml") || s.has(setupFile)) && (!s.has("package.json") || s.first("uv.lock", "poetry.lock", "manage.py") != "")
}

const pythonEnv = "ENV PYTHONUNBUFFERED=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PATH=/opt/venv/bin:$PATH\n"

func planPython(s *source, p *Plan) error {
	deps, err := s.pythonDeps(p)
	if err != nil {
		return err
	}
	version, err := s.pythonVersion(p, deps)
	if err != nil {
		return err
	}
	command, err := s.pythonStart(p, deps)
	if err != nil {
		return err
	}
	build, run, which := needs(nativePython, deps.names)
	if len(build)+len(run) > 0 {
		p.because("%s: installed with %s, run with %s", strings.Join(which, ", "), none(build), none(run))
	}
	if deps.git {
		build = append(build, gitClient...)
		p.because("dependencies come from git repositories: installed with git")
	}
	s.saysPackages(p)
	assets, node, err := s.nodeAssets(p)
	if err != nil {
		return err
	}

	from := "runtime/python" + version
	var b strings.Builder
	b.WriteString(assets)
	stage := func(name string) { fmt.Fprintf(&b, "FROM %s%s\n%s", from, name, s.args()) }
	// A compiler is no part of what runs.
	apart := len(build) > 0
	if apart {
		stage(" AS build")
		b.WriteString(s.packages(build...))
	} else {
		stage("")
		b.WriteString(s.packages(run...))
	}
	b.WriteString(pythonEnv)
	fmt.Fprintf(&b, "WORKDIR /app\nRUN python3 -m venv /opt/venv && chown %s /app\n", owner)
	if deps.install != "" {
		if len(deps.copy) > 0 {
			fmt.Fprintf(&b, "COPY %s ./\n", strings.Join(deps.copy, " "))
		} else if deps.copy == nil {
			b.WriteString("COPY . .\n")
		}
		fmt.Fprintf(&b, "RUN %s %s\n", pipCache, deps.install)
	}
	if command.extra != "" {
		fmt.Fprintf(&b, "RUN %s pip install %s\n", pipCache, command.extra)
	}
	if apart {
		if deps.after != "" {
			fmt.Fprintf(&b, "COPY . .\nRUN %s %s\n", pipCache, deps.after)
		}
		b.WriteString("\n")
		stage("")
		b.WriteString(s.packages(run...) + pythonEnv)
		fmt.Fprintf(&b, "WORKDIR /app\nRUN chown %s /app\nCOPY --from=build /opt/venv /opt/venv\n", owner)
	}
	fmt.Fprintf(&b, "COPY --chown=%s . .\n", owner)
	if assets != "" {
		fmt.Fprintf(&b, "COPY --from=assets --chown=%s --exclude=node_modules /app/ ./\n", owner)
	}
	if deps.after != "" && !apart {
		fmt.Fprintf(&b, "RUN %s %s\n", pipCache, deps.after)
	}
	if command.path != "" {
		fmt.Fprintf(&b, "ENV PYTHONPATH=/app/%s\n", command.path)
	}
	// As the user that runs it, which so owns the files that they make.
	fmt.Fprintf(&b, "ENV PORT=%d\nUSER %s\n", appconfig.DefaultPort, owner)
	if c := s.cfg.Build.Command; c != "" {
		p.because("%s says that %q is run once the source is installed", s.cfg.File, c)
		fmt.Fprintf(&b, "RUN %s\n", c)
	}
	if command.build != "" {
		fmt.Fprintf(&b, "RUN %s\n", command.build)
	}
	if command.line != "" {
		fmt.Fprintf(&b, "CMD %s\n", jsonList(appconfig.Shell(command.line)))
	}
	p.fact(FactInstall, deps.install, deps.file)
	p.fact(FactInstall, deps.after, deps.file)
	if s.cfg.Build.Command != "" {
		p.fact(FactBuild, s.cfg.Build.Command, s.cfg.File)
	}
	if command.build != "" {
		p.fact(FactBuild, "python3 manage.py collectstatic --noinput", "manage.py")
	}
	p.fact(FactStart, command.line, command.from)
	p.Dockerfile, p.Generated, p.Services = b.String(), true, web(appconfig.DefaultPort)
	if node != "" {
		p.Bases = append(p.Bases, node)
	}
	p.Bases = append(p.Bases, from)
	return nil
}

// none writes a list for people, also an empty one.
func none(list []string) string {
	if len(list) == 0 {
		return "nothing more"
	}
	return words(list)
}
