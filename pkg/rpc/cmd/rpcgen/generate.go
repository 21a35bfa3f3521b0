package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"miren.dev/runtime/pkg/schema/gogen"
	"miren.dev/runtime/pkg/schema/lang"
)

const (
	name    = "rpcgen"
	rpcPath = gogen.Module + "/pkg/rpc"
)

// generate renders every file without writing any.
func generate(root string) ([]gogen.Output, error) {
	files, set, err := load(root)
	if err != nil {
		return nil, err
	}
	var locks []*lang.Lock
	var errList []error
	for _, f := range files {
		l, err := lang.LoadLock(filepath.Join(root, "api", f.lang.Domain, "rpc.lock.yml"), f.lang.Domain)
		if err != nil {
			return nil, err
		}
		errList = append(errList, l.File(f.lang))
		for _, s := range f.services {
			errList = append(errList, l.Struct("service."+s.name, s.lockFields()))
		}
		locks = append(locks, l)
	}
	if err := errors.Join(errList...); err != nil {
		return nil, err
	}
	var outs []gogen.Output
	for i, f := range files {
		// schemagen writes the package's comment where there is a schema.
		_, err := os.Stat(filepath.Join(root, "api", f.lang.Domain, "schema.yml"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		src, err := f.source(set, err != nil)
		if err != nil {
			return nil, err
		}
		lock, err := locks[i].Bytes(name)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join("api", f.lang.Domain)
		outs = append(outs, gogen.Output{Path: filepath.Join(dir, "rpc.gen.go"), Data: src}, gogen.Output{Path: filepath.Join(dir, "rpc.lock.yml"), Data: lock})
	}
	return append(outs, gogen.Output{Path: filepath.Join("docs", "reference", "rpc.md"), Data: reference(files)}), nil
}

// source renders the Go file of a domain, with the package's comment if alone.
func (f *file) source(set *lang.Set, alone bool) ([]byte, error) {
	g := gogen.New(name, f.lang.Domain, f.lang.Domain, set)
	if alone {
		g.PackageDoc(gogen.PackageDocOf(f.lang.Domain, f.lang.Doc))
	}
	for _, e := range f.lang.Enums {
		g.Enum(e)
	}
	for _, c := range f.lang.Components {
		g.Struct(gogen.GoName(c.Name), c.Doc, c.Fields)
	}
	for _, s := range f.services {
		e := &emitter{File: g, set: set, domain: f.lang.Domain, service: s, goName: gogen.GoName(s.name)}
		e.handlers()
		e.client()
		e.table()
	}
	if len(f.services) > 0 {
		g.P("// Services are the services of this package.")
		g.P("var Services = []*%s.Service{", g.Import(rpcPath))
		for _, s := range f.services {
			g.P("%sService,", gogen.GoName(s.name))
		}
		g.P("}")
	}
	return g.Bytes()
}

// emitter writes the code of one service.
type emitter struct {
	*gogen.File
	set     *lang.Set
	domain  string
	service *service
	goName  string
}

// goType returns the Go type of a message, "bytes" or nothing.
func (e *emitter) goType(name string) string {
	switch name {
	case "":
		return e.Import(rpcPath) + ".None"
	case bytesType:
		return e.Import(rpcPath) + ".Bytes"
	}
	c := e.set.Component(e.domain, name)
	return e.TypeName(c.Domain, c.Name)
}

// variable is the unexported name of a method's table entry.
func (e *emitter) variable(m *method) string {
	return "method" + e.goName + gogen.GoName(m.name)
}

func (e *emitter) doc(m *method) {
	text := strings.Join(strings.Fields(m.doc), " ")
	e.Comment(gogen.GoName(m.name) + ": " + text + " Permission: " + m.permission + m.projectDoc() + ".")
}

// handlers emits the interface that handlers implement and its registration.
func (e *emitter) handlers() {
	rpc, ctx := e.Import(rpcPath), e.Import("context")
	e.Comment(e.goName + " is what serves the service. " + e.service.doc)
	e.P("type %s interface {", e.goName)
	for _, m := range e.service.methods {
		e.doc(m)
		args := "ctx " + ctx + ".Context"
		if m.request != "" {
			args += ", req *" + e.goType(m.request)
		}
		result := "error"
		switch {
		case m.streams():
			args += fmt.Sprintf(", s %s.ServerStream[%s, %s]", rpc, e.goType(m.in), e.goType(m.out))
		case m.response != "":
			result = "(*" + e.goType(m.response) + ", error)"
		}
		e.P("%s(%s) %s", gogen.GoName(m.name), args, result)
	}
	e.P("}\n")
	e.P("// Register%s makes s serve impl.", e.goName)
	e.P("func Register%s(s *%s.Server, impl %s) { s.Register(%sService, impl) }\n", e.goName, rpc, e.goName, e.goName)
}

// client emits the interface that callers use and its implementation.
func (e *emitter) client() {
	rpc, ctx := e.Import(rpcPath), e.Import("context")
	iface, impl := e.goName+"Client", "client"+e.goName
	signature := func(m *method) (args, result string) {
		args = "ctx " + ctx + ".Context"
		if m.request != "" {
			args += ", req *" + e.goType(m.request)
		}
		switch {
		case m.streams():
			return args, fmt.Sprintf("(%s.ClientStream[%s, %s], error)", rpc, e.goType(m.in), e.goType(m.out))
		case m.response != "":
			return args, "(*" + e.goType(m.response) + ", error)"
		}
		return args, "error"
	}
	e.P("// %s is what calls the service.", iface)
	e.P("type %s interface {", iface)
	for _, m := range e.service.methods {
		e.doc(m)
		args, result := signature(m)
		e.P("%s(%s) %s", gogen.GoName(m.name), args, result)
	}
	e.P("}\n")
	e.P("type %s struct{ conn %s.Conn }\n", impl, rpc)
	e.P("// New%s makes a client that calls through c.", iface)
	e.P("func New%s(c %s.Conn) %s { return %s{c} }\n", iface, rpc, iface, impl)
	for _, m := range e.service.methods {
		args, result := signature(m)
		req, info := "req", "&"+e.variable(m)+".MethodInfo"
		if m.request == "" {
			req = "&" + rpc + ".None{}"
		}
		e.P("func (c %s) %s(%s) %s {", impl, gogen.GoName(m.name), args, result)
		switch {
		case m.streams():
			e.P("s, err := c.conn.Open(ctx, %s, %s)\nif err != nil {\nreturn nil, err\n}", info, req)
			e.P("return %s.NewClientStream[%s, %s](s), nil", rpc, e.goType(m.in), e.goType(m.out))
		case m.response != "":
			e.P("resp := new(%s)", e.goType(m.response))
			e.P("if err := c.conn.Call(ctx, %s, %s, resp); err != nil {\nreturn nil, err\n}\nreturn resp, nil", info, req)
		default:
			e.P("return c.conn.Call(ctx, %s, %s, &%s.None{})", info, req, rpc)
		}
		e.P("}\n")
	}
}

// target emits the function that finds a request's project.
func (e *emitter) target(m *method) {
	fields, err := m.projectFields(e.set, e.domain)
	if err != nil {
		panic(err) // check has resolved them
	}
	if len(fields) == 0 {
		return
	}
	rpc := e.Import(rpcPath)
	e.P("Target: func(req any) %s.Target {\nr := req.(*%s)", rpc, e.goType(m.request))
	for i, f := range fields {
		value := selector(f.path)
		target := fmt.Sprintf("%s.Target{Project: %s}", rpc, value)
		if f.kind != "" {
			target = fmt.Sprintf("%s.Target{Kind: %q, ID: string(%s)}", rpc, f.kind, value)
		}
		if i < len(fields)-1 {
			e.P("if %s != \"\" {\nreturn %s\n}", value, target)
		} else {
			e.P("return %s", target)
		}
	}
	e.P("},")
}

// selector is the Go expression for a field of the request r.
func selector(path []string) string {
	s := "r"
	for _, name := range path {
		s += "." + gogen.GoName(name)
	}
	return s
}

// subject emits what the request changes.
func (e *emitter) subject(m *method) {
	subjects, err := m.auditSubjects(e.set, e.domain)
	if err != nil {
		panic(err) // check has resolved them
	}
	if len(subjects) == 0 {
		return
	}
	rpc := e.Import(rpcPath)
	e.P("Subject: func(req any) %s.Subject {\nr := req.(*%s)", rpc, e.goType(m.request))
	for i, s := range subjects {
		var parts []string
		for _, p := range s.paths {
			parts = append(parts, "string("+selector(p)+")")
		}
		id := strings.Join(parts, " + ")
		if i < len(subjects)-1 {
			e.P("if %s != \"\" {", id)
		}
		e.P("return %s.Subject{Kind: %q, ID: %s}", rpc, s.kind, id)
		if i < len(subjects)-1 {
			e.P("}")
		}
	}
	e.P("},")
}

// table emits the methods with their handlers.
func (e *emitter) table() {
	rpc, ctx := e.Import(rpcPath), e.Import("context")
	full := e.domain + "." + e.goName
	for _, m := range e.service.methods {
		mn := gogen.GoName(m.name)
		e.P("var %s = &%s.Method{", e.variable(m), rpc)
		e.P("MethodInfo: %s.MethodInfo{", rpc)
		e.P("Service: %q, Name: %q, Full: %q, Permission: %q, Project: %s.%s, Idempotent: %t, Stream: %s.%s, Audit: %t,", full, mn, full+"/"+mn, m.permission, rpc, m.projectRule(), m.idempotent, rpc, m.streamType(), m.audited)
		e.P("},")
		e.target(m)
		e.subject(m)
		call := "ctx"
		decode := func(fail string) {
			t := m.request
			e.P("req := new(%s)", e.goType(t))
			e.P("if err := d.Decode(req); err != nil {\nreturn %s\n}", fail)
			if t != "" {
				call += ", req"
			}
		}
		if m.streams() {
			e.P("Streaming: func(ctx %s.Context, impl any, d %s.Decoder, s %s.Stream) error {", ctx, rpc, rpc)
			decode("err")
			e.P("return impl.(%s).%s(%s, %s.NewServerStream[%s, %s](s))", e.goName, mn, call, rpc, e.goType(m.in), e.goType(m.out))
		} else {
			e.P("Unary: func(ctx %s.Context, impl any, d %s.Decoder) (any, error) {", ctx, rpc)
			decode("nil, err")
			if m.response == "" {
				e.P("return %s.None{}, impl.(%s).%s(%s)", rpc, e.goName, mn, call)
			} else {
				e.P("return impl.(%s).%s(%s)", e.goName, mn, call)
			}
		}
		e.P("},\n}\n")
	}
	e.P("// %sService is the table of the service.", e.goName)
	e.P("var %sService = &%s.Service{Name: %q, Methods: []*%s.Method{", e.goName, rpc, full, rpc)
	for _, m := range e.service.methods {
		e.P("%s,", e.variable(m))
	}
	e.P("}}\n")
}
