package stack

import (
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/errs"
)

func (s *source) dockerfile() string {
	if f := s.cfg.Build.Dockerfile; f != "" {
		return f
	}
	return "Dockerfile"
}

func hasDockerfile(s *source) bool {
	return s.cfg.Build.Dockerfile != "" || s.has("Dockerfile")
}

func planDockerfile(s *source, p *Plan) error {
	name := s.dockerfile()
	if !s.has(name) {
		return errs.New(errs.InvalidArgument, "there is no %s", name).WithHint("set build.dockerfile in app.toml to where it is; is it ignored by .gitignore?")
	}
	if s.cfg.Build.Dockerfile != "" {
		p.because("%s says that the Dockerfile is %s", s.cfg.File, name)
	} else {
		p.because("there is a Dockerfile")
	}
	text, err := s.read(name)
	if err != nil {
		return err
	}
	p.Dockerfile, p.Path = text, name
	d, err := parseDockerfile(text, s.cfg.Build.Args, s.cfg.Build.Target)
	if err != nil {
		return errs.New(errs.InvalidArgument, "%s: %w", name, err)
	}
	p.Bases, p.Secrets = d.bases, d.secrets
	for _, secret := range d.secrets {
		p.because("a step of it asks for the build secret %s", secret.ID)
	}
	p.Services = web(appconfig.DefaultPort)
	switch {
	case len(d.ports) == 1:
		p.Services = web(d.ports[0])
		p.because("it exposes port %d", d.ports[0])
	case len(d.ports) > 1:
		p.Services = web(d.ports[0])
		p.because("it exposes several ports; the first, %d, is the web service's (set services.web.port to choose another)", d.ports[0])
	default:
		p.because("it exposes no port")
	}
	if !d.command && len(s.cfg.Services) == 0 {
		p.because("it has neither CMD nor ENTRYPOINT: what its base image runs is run")
	}
	return nil
}

// Inputs returns the images that a Dockerfile begins from or copies from, as
// written there, and the build secrets that its steps mount.
func Inputs(dockerfile string) (bases []string, secrets []Secret, err error) {
	d, err := parseDockerfile(dockerfile, nil, "")
	if err != nil {
		return nil, nil, err
	}
	return d.bases, d.secrets, nil
}

// parsed is what matters of a Dockerfile.
type parsed struct {
	bases   []string
	ports   []int64
	command bool
	secrets []Secret
}

func parseDockerfile(text string, args map[string]string, target string) (*parsed, error) {
	ast, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	stages, meta, err := instructions.Parse(ast.AST, nil)
	if err != nil {
		return nil, err
	}
	lex := shell.NewLex(ast.EscapeToken)
	env := argsEnv{}
	for k, v := range map[string]string{"TARGETPLATFORM": platform, "BUILDPLATFORM": platform, "TARGETOS": "linux", "BUILDOS": "linux", "TARGETARCH": arch, "BUILDARCH": arch} {
		env[k] = v
	}
	for _, cmd := range meta {
		for _, a := range cmd.Args {
			if v, ok := args[a.Key]; ok {
				env[a.Key] = v
			} else if a.Value != nil {
				if v, _, err := lex.ProcessWord(*a.Value, env); err == nil {
					env[a.Key] = v
				}
			}
		}
	}
	if len(stages) == 0 {
		return nil, errs.New(errs.InvalidArgument, "it has no FROM")
	}
	last := len(stages) - 1
	stageIndex := map[string]int{}
	for i, st := range stages {
		if st.Name != "" {
			stageIndex[strings.ToLower(st.Name)] = i
			if strings.EqualFold(st.Name, target) {
				last = i
			}
		}
	}
	d := &parsed{}
	seen := map[string]bool{"scratch": true, "": true}
	external := func(name string, before int) {
		if i, ok := stageIndex[strings.ToLower(name)]; ok && i < before || seen[name] {
			return
		}
		if strings.Trim(name, "0123456789") == "" { // a stage by number
			return
		}
		seen[name] = true
		d.bases = append(d.bases, name)
	}
	for i, st := range stages[:last+1] {
		name, _, err := lex.ProcessWord(st.BaseName, env)
		if err != nil {
			return nil, err
		}
		external(name, i)
		for _, c := range st.Commands {
			switch c := c.(type) {
			case *instructions.CopyCommand:
				external(c.From, i)
			case *instructions.RunCommand:
				// Until then mounts have nothing but from=. What does not expand with the arguments before the first FROM
				// is BuildKit's to explain.
				_ = c.Expand(func(word string) (string, error) {
					word, _, err := lex.ProcessWord(word, env)
					return word, err
				})
				for _, m := range instructions.GetMounts(c) {
					if m.Type == instructions.MountTypeSecret {
						d.secrets = addSecret(d.secrets, mounted(m))
						continue
					}
					external(m.From, i)
				}
			}
		}
	}
	// What the last stage says, and the stages that it is made from.
	for i := last; ; {
		st := stages[i]
		var ports []int64
		for _, c := range st.Commands {
			switch c := c.(type) {
			case *instructions.ExposeCommand:
				for _, e := range c.Ports {
					if port, ok := exposed(e, lex, env); ok {
						ports = append(ports, port)
					}
				}
			case *instructions.CmdCommand, *instructions.EntrypointCommand:
				d.command = true
			}
		}
		d.ports = append(d.ports, ports...)
		next, ok := stageIndex[strings.ToLower(st.BaseName)]
		if !ok || next >= i {
			return d, nil
		}
		i = next
	}
}

// exposed reads "8080", "8080/tcp" and, with its default, "${PORT:-8080}".
func exposed(s string, lex *shell.Lex, env argsEnv) (int64, bool) {
	if v, _, err := lex.ProcessWord(s, env); err == nil {
		s = v
	}
	number, proto, _ := strings.Cut(s, "/")
	if proto != "" && proto != "tcp" {
		return 0, false
	}
	var n int64
	for _, c := range number {
		if c < '0' || c > '9' || n > 65535 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, n > 0 && n <= 65535
}

// argsEnv is the variables that FROM lines may use.
type argsEnv map[string]string

func (e argsEnv) Get(k string) (string, bool) { v, ok := e[k]; return v, ok }
func (e argsEnv) Keys() []string              { return sortedKeys(e) }
