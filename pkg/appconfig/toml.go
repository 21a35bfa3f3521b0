package appconfig

import (
	"errors"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/google/jsonschema-go/jsonschema"

	"miren.dev/runtime/pkg/errs"
)

// parser walks one decoded file and knows the line of each key.
type parser struct {
	file    string
	lines   map[string]int // dotted key: line
	err     *errs.Error    // the first mistake
	errLine int
}

// Stacks are the choices of build.stack.
var Stacks = []string{"dockerfile", "go", "python", "php", "ruby", "java", "rust", "deno", "node", "static"}

// protocols are the choices of protocol of a service.
var protocols = []string{"http", "h2c"}

// overlaps are the choices of overlap of a task.
var overlaps = []string{"skip", "allow", "replace"}

var (
	taskName    = regexp.MustCompile(TaskNamePattern)
	appName     = regexp.MustCompile(AppNamePattern)
	serviceName = regexp.MustCompile(ServiceNamePattern)
	envName     = regexp.MustCompile(EnvNamePattern)
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.:-]*$`)
)

// table is the known keys of one table.
type table map[string]field

// field is a key: what its values look like, and what takes one.
type field struct {
	schema *jsonschema.Schema
	set    func(key string, v any)
}

// Parse reads the text of an app.toml. file is its name in messages.
func Parse(file, text string) (*Config, error) {
	var raw map[string]any
	meta, err := toml.Decode(text, &raw)
	if err != nil {
		var pe toml.ParseError
		if errors.As(err, &pe) {
			return nil, errs.New(errs.InvalidArgument, "%s:%d: %s", file, pe.Position.Line, pe.Message)
		}
		return nil, errs.New(errs.InvalidArgument, "%s: %w", file, err)
	}
	p := &parser{file: file, lines: keyLines(text)}
	c := &Config{File: file}
	p.walk("", raw, p.root(c, meta))
	if p.err != nil {
		return nil, p.err
	}
	return c, nil
}

// root returns the keys of the file.
func (p *parser) root(c *Config, meta toml.MetaData) table {
	return table{
		"name":    p.appName(&c.Name),
		"env":     p.env(&c.Env),
		"release": p.command(&c.Release),
		"network": p.network(&c.Network),
		"addons":  p.addons(&c.Addons, meta),
		"preview": p.preview(&c.Preview),
		"git":     p.git(&c.Git),
		"build": p.table(table{
			"stack":      p.oneOf(&c.Build.Stack, Stacks),
			"dockerfile": p.path(&c.Build.Dockerfile),
			"target":     p.text(&c.Build.Target),
			"package":    p.path(&c.Build.Package),
			"command":    p.text(&c.Build.Command),
			"output":     p.path(&c.Build.Output),
			"fallback":   p.path(&c.Build.Fallback),
			"version":    p.text(&c.Build.Version),
			"packages":   p.list(&c.Build.Packages, packageName),
			"args":       p.env(&c.Build.Args),
			"secrets":    p.list(&c.Build.Secrets, envName),
		}),
		"services": {named(ServiceNamePattern, object(p.service(&Service{}))), func(key string, v any) {
			for _, name := range p.order(key, v, meta) {
				s := Service{Name: name}
				p.setService(key+"."+name, v.(map[string]any)[name], &s)
				c.Services = append(c.Services, s)
			}
			p.writers(key, c.Services)
		}},
		"tasks": {named(TaskNamePattern, object(p.task(&Task{}), "command")), func(key string, v any) {
			for _, name := range p.order(key, v, meta) {
				if c.Service(name) != nil {
					p.fail(key+"."+name, "%s has the name of a service", key+"."+name)
				}
				t := Task{Name: name}
				p.setTask(key+"."+name, v.(map[string]any)[name], &t)
				c.Tasks = append(c.Tasks, t)
			}
			if len(c.Tasks) > MaxTasks {
				p.fail(key, "there are %d tasks, but at most %d", len(c.Tasks), MaxTasks)
			}
		}},
		"routes": {named(routePattern, object(p.route(&Route{}))), func(key string, v any) {
			for _, name := range p.order(key, v, meta) {
				c.Routes = append(c.Routes, p.setRoute(key+"."+name, name, v.(map[string]any)[name]))
			}
			if len(c.Routes) > MaxSourceRoutes {
				p.fail(key, "there are %d routes, but at most %d", len(c.Routes), MaxSourceRoutes)
			}
		}},
	}
}

// service returns the keys of a service.
func (p *parser) service(s *Service) table {
	return table{
		"command":         p.command(&s.Command),
		"port":            p.integer(&s.Port, 0, MaxPort),
		"protocol":        p.oneOf(&s.Protocol, protocols),
		"replicas":        p.integer(&s.Replicas, 0, MaxReplicas),
		"scale":           p.scale(&s.Scale),
		"concurrency":     p.integer(&s.Concurrency, 1, MaxConcurrency),
		"health_path":     p.healthPath(&s.HealthPath),
		"health_deadline": p.duration(&s.HealthDeadline, MinDeadline, MaxHealthDeadline),
		"checks":          p.table(table{"live": p.live(&s.Live)}),
		"cpu":             p.cpu(&s.CPUMillis),
		"memory":          p.memory(&s.MemoryBytes),
		"pids":            p.integer(&s.PIDs, 1, MaxPIDs),
		"stop_timeout":    p.duration(&s.StopTimeout, 0, MaxStopTimeout),
		"env":             p.env(&s.Env),
		"volumes":         p.volumes(&s.Volumes),
	}
}

func (p *parser) setService(key string, v any, s *Service) {
	if !serviceName.MatchString(s.Name) {
		p.fail(key, "service name %q must be lower-case letters, digits and dashes, beginning with a letter, at most 32", s.Name)
	}
	p.table(p.service(s)).set(key, v)
	p.checkScale(key, s)
	if d := s.Writes(); d != "" && s.Replicas != nil && *s.Replicas > 1 {
		at := key + ".replicas"
		p.keep(p.line(at), errs.New(errs.InvalidArgument, "%s%s is %d, but the service writes to the disk %s, which one sandbox at a time can do",
			p.prefix(at), at, *s.Replicas, d).WithHint("set replicas = 1, or read_only = true in [%s.volumes.%s]", key, d))
	}
}

// task returns the keys of a task.
func (p *parser) task(t *Task) table {
	return table{
		"command":   p.command(&t.Command),
		"schedule":  p.text(&t.Schedule),
		"time_zone": p.text(&t.TimeZone),
		"overlap":   p.oneOf(&t.Overlap, overlaps),
		"catch_up":  p.duration(&t.CatchUp, 0, MaxCatchUp),
		"timeout":   p.duration(&t.Timeout, MinTaskTimeout, MaxTaskTimeout),
		"cpu":       p.cpu(&t.CPUMillis),
		"memory":    p.memory(&t.MemoryBytes),
		"pids":      p.integer(&t.PIDs, 1, MaxPIDs),
		"env":       p.env(&t.Env),
	}
}

func (p *parser) setTask(key string, v any, t *Task) {
	if !taskName.MatchString(t.Name) {
		p.fail(key, "task name %q must be lower-case letters, digits and dashes, beginning with a letter, at most 32", t.Name)
	}
	p.table(p.task(t)).set(key, v)
	if _, ok := v.(map[string]any); ok && len(t.Command) == 0 {
		p.fail(key, "%s needs command", key)
	}
	switch {
	case t.Schedule != "":
		p.times(key+".schedule", t.Schedule, t.TimeZone)
	case t.TimeZone != "":
		p.fail(key+".time_zone", "%s has a time zone, but no schedule", key)
	}
}

// order returns the names in a table of tables, in the order of the file.
func (p *parser) order(key string, v any, meta toml.MetaData) []string {
	m, ok := v.(map[string]any)
	if !ok {
		p.fail(key, "%s must be a table: [%s.NAME]", key, key)
		return nil
	}
	var names []string
	for _, k := range meta.Keys() {
		if len(k) >= 2 && k[0] == key && !slices.Contains(names, k[1]) {
			names = append(names, k[1])
		}
	}
	return slices.DeleteFunc(names, func(n string) bool { _, ok := m[n]; return !ok })
}

// walk calls the function of each key of a table with its value.
func (p *parser) walk(prefix string, m map[string]any, t table) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		key := k
		if prefix != "" {
			key = prefix + "." + k
		}
		if f, ok := t[k]; ok {
			f.set(key, m[k])
			continue
		}
		e := errs.New(errs.InvalidArgument, "%s:%d: unknown key %q", p.file, p.line(key), key)
		if s := closest(k, slices.Sorted(maps.Keys(t))); s != "" {
			e = e.WithHint("did you mean %q?", strings.TrimSuffix(key, k)+s)
		} else {
			e = e.WithHint("keys here are: %s", strings.Join(slices.Sorted(maps.Keys(t)), ", "))
		}
		p.keep(p.line(key), e)
	}
}

// keep records a mistake if it comes before the recorded one in the file.
func (p *parser) keep(line int, e *errs.Error) {
	if p.err == nil || line < p.errLine {
		p.err, p.errLine = e, line
	}
}

func (p *parser) fail(key, format string, args ...any) {
	e := errs.New(errs.InvalidArgument, format, args...)
	e.Message = p.prefix(key) + e.Message
	p.keep(p.line(key), e)
}

func (p *parser) prefix(key string) string {
	if n := p.line(key); n > 0 {
		return p.file + ":" + itoa(n) + ": "
	}
	return p.file + ": "
}

// line of a key, or of the nearest table around it.
func (p *parser) line(key string) int {
	for key != "" {
		if n, ok := p.lines[key]; ok {
			return n
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			break
		}
		key = key[:i]
	}
	return 0
}

// cleanPath is a path below the root, or an error text.
func cleanPath(s string) (string, bool) {
	c := path.Clean(strings.TrimPrefix(s, "./"))
	return c, !path.IsAbs(s) && c != ".." && !strings.HasPrefix(c, "../")
}
