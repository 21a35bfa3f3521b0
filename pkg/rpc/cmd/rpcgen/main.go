// Command rpcgen generates code and documentation from api/*/rpc.yml:
//
//	go run ./pkg/rpc/cmd/rpcgen -root . [-check]
//
// For every domain it writes api/<domain>/rpc.gen.go and rpc.lock.yml (which
// numbers fields and methods, and refuses incompatible changes), and for all
// of them docs/reference/rpc.md. With -check it writes nothing, lists the files
// that are out of date and exits with status 1 if there are any.
//
// An rpc.yml is strict YAML:
//
//	domain: sandbox
//	doc: What the domain is.
//	enums: {as in schema.yml}
//	messages:
//	  stop_request: {doc: ..., fields: {id: {type: ref, kind: sandbox, required: true, doc: ...}}}
//	services:
//	  sandboxes:
//	    doc: ...
//	    methods:
//	      stop: {doc: ..., permission: exec, project: id, idempotent: true, request: stop_request, response: stop_response}
//	      exec: {doc: ..., permission: exec, project: [id, project], request: exec_request, in: exec_input, out: exec_output}
//	      upload: {doc: ..., permission: deploy, project: any, in: bytes, out: upload_result}
//
// request, response, in and out name messages, or components of any schema
// ("app.git_info"); all are optional. in is what the caller streams, out what
// the handler streams; "bytes" are raw bytes. A method that streams has no
// response.
//
// project says which project a method concerns, and is required unless the
// method is public: cluster (the installation: only for roles that hold in all
// projects), any (none), handler (the handler limits itself to rpc.GrantFrom), or
// fields of the request, of which the first that is not empty counts: a string is
// the name of a project, a ref leads to an entity whose project it is.
//
// For a service x it generates an interface X for the handlers, RegisterX,
// an interface XClient with NewXClient, and the table XService.
package main

import "miren.dev/runtime/pkg/schema/gogen"

func main() { gogen.Main(name, generate) }
