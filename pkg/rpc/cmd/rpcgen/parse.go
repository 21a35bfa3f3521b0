package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/pkg/schema/gogen"
	"miren.dev/runtime/pkg/schema/lang"
)

// file is one parsed rpc.yml.
type file struct {
	lang     *lang.File // enums and messages
	services []*service
}

type service struct {
	name    string // sandboxes
	doc     string
	methods []*method
	pos     lang.Pos
}

type method struct {
	name       string
	doc        string
	permission string
	project    []string // one of projectRules, or paths of fields of the request
	idempotent bool
	audited    bool
	subjects   []string // "KIND FIELD+FIELD", the first that the request has counts
	request    string   // name of a message or domain.component; empty: none
	response   string
	in, out    string // as request, or "bytes"
	pos        lang.Pos
}

// bytesType is the name of raw bytes in in and out.
const bytesType = "bytes"

// permissions are the permissions that a method may require.
var permissions = []string{"public", "read", "write", "deploy", "exec", "admin"}

// projectRules are the values of project that name no field.
var projectRules = []string{"cluster", "any", "handler"}

// byRequest reports whether fields of the request lead to its project.
func (m *method) byRequest() bool {
	return len(m.project) > 0 && !slices.Contains(projectRules, m.project[0])
}

// projectRule is the constant of package rpc.
func (m *method) projectRule() string {
	switch {
	case m.permission == "public":
		return "ProjectAny"
	case m.byRequest():
		return "ProjectRequest"
	}
	return "Project" + gogen.GoName(m.project[0])
}

func (m *method) streams() bool { return m.in != "" || m.out != "" }

// streamType is the constant of package rpc.
func (m *method) streamType() string {
	switch {
	case m.in != "" && m.out != "":
		return "StreamBidi"
	case m.in != "":
		return "StreamClient"
	case m.out != "":
		return "StreamServer"
	}
	return "StreamNone"
}

// load parses every api/*/rpc.yml under root and resolves names against the
// schemas.
func load(root string) ([]*file, *lang.Set, error) {
	set, err := lang.LoadSet(root)
	if err != nil {
		return nil, nil, err
	}
	paths, err := filepath.Glob(filepath.Join(root, "api", "*", "rpc.yml"))
	if err != nil {
		return nil, nil, err
	}
	if len(paths) == 0 {
		return nil, nil, fmt.Errorf("no api/*/rpc.yml under %s", root)
	}
	sort.Strings(paths)
	var files []*file
	var errList []error
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, nil, err
		}
		f, err := parse(p, b, set.Constants)
		if err != nil {
			errList = append(errList, err)
			continue
		}
		if want := filepath.Base(filepath.Dir(p)); f.lang.Domain != want {
			errList = append(errList, fmt.Errorf("%s: domain %q is in the folder %q", p, f.lang.Domain, want))
		}
		errList = append(errList, set.Add(f.lang))
		files = append(files, f)
	}
	errList = append(errList, set.Check())
	for _, f := range files {
		errList = append(errList, f.check(set))
	}
	return files, set, errors.Join(errList...)
}

func parse(path string, b []byte, constants lang.Constants) (*file, error) {
	root, err := lang.Root(path, b)
	if err != nil {
		return nil, err
	}
	// The folder is that of the domain; load checks it.
	p := &lang.Parser{File: path, Records: true, Constants: constants, Domain: filepath.Base(filepath.Dir(path))}
	f := &file{lang: &lang.File{Path: path}}
	p.Mapping(root, "", map[string]func(*yaml.Node){
		"domain":   func(n *yaml.Node) { f.lang.Domain = p.Name(n) },
		"doc":      func(n *yaml.Node) { f.lang.Doc = p.Str(n) },
		"enums":    func(n *yaml.Node) { f.lang.Enums = p.Enums(n) },
		"messages": func(n *yaml.Node) { f.lang.Components = p.Components(n) },
		"services": func(n *yaml.Node) { f.services = services(p, n) },
	})
	if f.lang.Domain == "" || f.lang.Doc == "" {
		p.Errorf(root, "domain and doc are required")
	}
	return f, p.Err()
}

func services(p *lang.Parser, n *yaml.Node) []*service {
	var out []*service
	p.Each(n, "services", func(k, v *yaml.Node) {
		s := &service{name: p.Name(k), pos: p.Pos(k)}
		p.Mapping(v, "service "+k.Value, map[string]func(*yaml.Node){
			"doc": func(n *yaml.Node) { s.doc = p.Str(n) },
			"methods": func(n *yaml.Node) {
				p.Each(n, "methods of "+k.Value, func(k, v *yaml.Node) { s.methods = append(s.methods, parseMethod(p, k, v)) })
			},
		})
		if s.doc == "" || len(s.methods) == 0 {
			p.Errorf(k, "service %s: doc and methods are required", s.name)
		}
		out = append(out, s)
	})
	return out
}

func parseMethod(p *lang.Parser, k, v *yaml.Node) *method {
	m := &method{name: p.Name(k), pos: p.Pos(k)}
	said := false // whether its calls are recorded
	p.Mapping(v, "method "+k.Value, map[string]func(*yaml.Node){
		"doc":        func(n *yaml.Node) { m.doc = p.Str(n) },
		"permission": func(n *yaml.Node) { m.permission = p.OneOf(n, permissions...) },
		"project":    func(n *yaml.Node) { m.project = fieldPaths(p, n) },
		"idempotent": func(n *yaml.Node) { m.idempotent = p.Bool(n) },
		"audit": func(n *yaml.Node) {
			if said = true; n.Tag == "!!bool" {
				m.audited = p.Bool(n)
				return
			}
			m.audited, m.subjects = true, fieldPaths(p, n)
		},
		"request":  func(n *yaml.Node) { m.request = p.TypeName(n) },
		"response": func(n *yaml.Node) { m.response = p.TypeName(n) },
		"in":       func(n *yaml.Node) { m.in = p.TypeName(n) },
		"out":      func(n *yaml.Node) { m.out = p.TypeName(n) },
	})
	if m.doc == "" || m.permission == "" {
		p.Errorf(k, "method %s: doc and permission are required", m.name)
	}
	if !said && m.permission != "" && m.permission != "public" && m.permission != "read" {
		p.Errorf(k, "method %s: audit is required: true or what is changed (\"KIND FIELD\", a field of the request) if it changes anything, else false", m.name)
	}
	switch {
	case m.permission == "public" && len(m.project) > 0:
		p.Errorf(k, "method %s is public: project means nothing", m.name)
	case m.permission != "" && m.permission != "public" && len(m.project) == 0:
		p.Errorf(k, "method %s: project is required: cluster, any, handler, or the fields of the request that lead to the project", m.name)
	}
	if m.streams() && m.response != "" {
		p.Errorf(k, "method %s streams: it answers with out, not with response", m.name)
	}
	if m.streams() && m.idempotent {
		p.Errorf(k, "method %s streams: streams are never repeated by the client, so idempotent means nothing", m.name)
	}
	return m
}

// projectDoc describes the projects in which the permission is needed.
func (m *method) projectDoc() string {
	switch {
	case m.permission == "public":
		return ""
	case m.byRequest():
		return ", in the project of " + strings.Join(m.project, ", else ")
	case m.project[0] == "cluster":
		return ", in all projects"
	case m.project[0] == "any":
		return ", in any project"
	}
	return ", for the caller's projects"
}

// fieldPaths reads one word, or a list of words.
func fieldPaths(p *lang.Parser, n *yaml.Node) []string {
	if n.Kind != yaml.SequenceNode {
		return []string{p.Str(n)}
	}
	var out []string
	for _, c := range n.Content {
		out = append(out, p.Str(c))
	}
	return out
}

// projectField is a field of a request that leads to a project.
type projectField struct {
	path []string
	kind string // path of the entity whose project counts; empty: the field is the project's name
}

// projectFields resolves the fields of method.project.
func (m *method) projectFields(set *lang.Set, domain string) ([]projectField, error) {
	if !m.byRequest() {
		return nil, nil
	}
	var out []projectField
	for _, path := range m.project {
		fd, err := m.field(set, domain, "project", path)
		if err != nil {
			return nil, err
		}
		f := projectField{path: strings.Split(path, ".")}
		if fd.Type == lang.Ref {
			if k := set.Kind(fd.Kind); k != nil && k.Scope != "project" {
				return nil, fmt.Errorf("%s: method %s: project %q: a %s belongs to no project", m.pos, m.name, path, fd.Kind)
			}
			f.kind = fd.Kind
		}
		out = append(out, f)
	}
	return out, nil
}

// field finds a string or ref of the request, also below required components.
func (m *method) field(set *lang.Set, domain, key, path string) (*lang.Field, error) {
	msg, names := set.Component(domain, m.request), strings.Split(path, ".")
	for i, name := range names {
		if msg == nil {
			return nil, fmt.Errorf("%s: method %s: %s %q: there is no message before %q", m.pos, m.name, key, path, name)
		}
		at := slices.IndexFunc(msg.Fields, func(f *lang.Field) bool { return f.Name == name })
		if at < 0 {
			rules := ""
			if key == "project" {
				rules = "; rules are " + strings.Join(projectRules, ", ")
			}
			return nil, fmt.Errorf("%s: method %s: %s %q: %s has no field %q%s", m.pos, m.name, key, path, msg.Name, name, rules)
		}
		fd, last := msg.Fields[at], i == len(names)-1
		switch {
		case last && (fd.Type == lang.Ref || fd.Type == lang.String):
			return fd, nil
		case !last && fd.Type == lang.Struct && fd.Required:
			msg = set.Component(domain, fd.Component)
		default:
			return nil, fmt.Errorf("%s: method %s: %s %q: %q is neither a string, nor a ref, nor a required component", m.pos, m.name, key, path, name)
		}
	}
	return nil, nil
}

// subject is what a request says of what it changes: a kind, and the fields
// that make its id.
type subject struct {
	kind  string
	paths [][]string
}

// auditSubjects resolves method.subjects.
func (m *method) auditSubjects(set *lang.Set, domain string) ([]subject, error) {
	var out []subject
	for _, text := range m.subjects {
		kind, fields, ok := strings.Cut(text, " ")
		if !ok || set.Kind(kind) == nil {
			return nil, fmt.Errorf("%s: method %s: audit %q is not true, false, or a kind and a field of the request", m.pos, m.name, text)
		}
		s := subject{kind: kind}
		for path := range strings.SplitSeq(fields, "+") {
			if _, err := m.field(set, domain, "audit", path); err != nil {
				return nil, err
			}
			s.paths = append(s.paths, strings.Split(path, "."))
		}
		out = append(out, s)
	}
	return out, nil
}

// check resolves the messages of the methods.
func (f *file) check(set *lang.Set) error {
	var errList []error
	for _, s := range f.services {
		for _, m := range s.methods {
			if _, err := m.projectFields(set, f.lang.Domain); err != nil {
				errList = append(errList, err)
			}
			if _, err := m.auditSubjects(set, f.lang.Domain); err != nil {
				errList = append(errList, err)
			}
			for key, name := range map[string]string{"request": m.request, "response": m.response, "in": m.in, "out": m.out} {
				if name == "" || name == bytesType && (key == "in" || key == "out") || set.Component(f.lang.Domain, name) != nil {
					continue
				}
				var known []string
				for _, c := range f.lang.Components {
					known = append(known, c.Name)
				}
				errList = append(errList, fmt.Errorf("%s: method %s: the message %q of %s does not exist%s", m.pos, m.name, name, key, lang.Suggest(name, known)))
			}
		}
	}
	return errors.Join(errList...)
}

// lockFields are the methods of a service as the lock knows them: their
// signature must not change.
func (s *service) lockFields() []*lang.Field {
	var out []*lang.Field
	for _, m := range s.methods {
		var parts []string
		for _, kv := range [][2]string{{"request", m.request}, {"response", m.response}, {"in", m.in}, {"out", m.out}} {
			if kv[1] != "" {
				parts = append(parts, kv[0]+" "+kv[1])
			}
		}
		if len(parts) == 0 {
			parts = []string{"nothing"}
		}
		out = append(out, &lang.Field{Name: m.name, Type: lang.Type(strings.Join(parts, ", ")), Pos: m.pos})
	}
	return out
}
