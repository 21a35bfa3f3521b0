package mcpserver

import (
	"context"
	"encoding/json"
	"mime"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

const (
	// listURI is the resource that lists the sandboxes. Others are below it: one
	// for each sandbox, and one for each of its files.
	listURI  = "sandboxes:///"
	jsonType = "application/json"
	// maxResource bounds a file that is read as a resource, in bytes.
	maxResource = 8 << 20
)

// resourceTemplate is one entry of the table of resource templates.
type resourceTemplate struct {
	sdk.ResourceTemplate
	needs []string // tools that show the same
}

func resourceTemplates() []resourceTemplate {
	return []resourceTemplate{
		{sdk.ResourceTemplate{URITemplate: listURI + "{sandbox}", Name: "sandbox", Title: "A sandbox", MIMEType: jsonType,
			Description: "A sandbox, by its id or name"}, []string{"describe_sandbox"}},
		{sdk.ResourceTemplate{URITemplate: listURI + "{sandbox}/files{+path}", Name: "file", Title: "A file of a sandbox",
			Description: "A file of a sandbox by its absolute path, or a directory as JSON"}, []string{"read_file", "list_files"}},
	}
}

// addResources gives the server the resources of the tools that the session has.
func (s *session) addResources() {
	if s.has("list_sandboxes") {
		s.server.AddResource(&sdk.Resource{URI: listURI, Name: "sandboxes", Title: "Sandboxes", MIMEType: jsonType,
			Description: "The sandboxes of the project that have not terminated"}, s.resource)
	}
	for _, t := range resourceTemplates() {
		if s.has(t.needs...) {
			s.server.AddResourceTemplate(&t.ResourceTemplate, s.resource)
		}
	}
}

// target is what a URI names: the list of sandboxes (zero), a sandbox, or a file.
type target struct{ sandbox, file string }

// parseURI returns false for a URI that names no resource of any sandbox.
func parseURI(uri string) (target, bool) {
	u, err := url.Parse(uri)
	if err != nil || !strings.HasPrefix(uri, listURI) || u.RawQuery != "" || u.Fragment != "" {
		return target{}, false
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	file, isFile := strings.CutPrefix(rest, "files")
	switch {
	case rest == "":
		return target{sandbox: name}, true
	case name != "" && isFile && (file == "" || file[0] == '/'):
		return target{name, path.Join("/", file)}, true
	}
	return target{}, false
}

// resource reads a resource.
func (s *session) resource(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	uri := req.Params.URI
	t, ok := parseURI(uri)
	if !ok {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	c := &sdk.ResourceContents{URI: uri, MIMEType: jsonType}
	var v any
	var err error
	switch {
	case t.sandbox == "":
		v, err = s.listSandboxes(ctx, nil, &listInput{})
	case t.file == "":
		v, err = s.describeSandbox(ctx, nil, &sandboxInput{Sandbox: t.sandbox})
	default:
		v, err = s.fileResource(ctx, t.sandbox, t.file, c)
	}
	if errs.Is(err, errs.NotFound) {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err == nil && v != nil {
		var b []byte
		b, err = json.Marshal(v)
		c.Text = string(b)
	}
	if err != nil {
		return nil, toolError(err)
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{c}}, nil
}

// fileResource reads a file into c, or returns the list of a directory.
func (s *session) fileResource(ctx context.Context, name, file string, c *sdk.ResourceContents) (any, error) {
	sb, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	info, err := s.files.Stat(ctx, &sandbox.FileRequest{Sandbox: sb.GetID(), Path: file})
	if err != nil {
		return nil, err
	}
	if info.Type == sandbox.FileTypeDirectory {
		return s.listFiles(ctx, nil, &listFilesInput{Sandbox: name, Path: file})
	}
	if info.SizeBytes > maxResource {
		return nil, errs.New(errs.InvalidArgument, "%s has %d bytes, a resource at most %d", file, info.SizeBytes, maxResource).WithHint("read parts of it with read_file")
	}
	_, content, err := s.read(ctx, &sandbox.ReadFileRequest{Sandbox: sb.GetID(), Path: file, Length: new(int64(maxResource))})
	if err != nil {
		return nil, err
	}
	c.MIMEType = mime.TypeByExtension(path.Ext(file))
	if utf8.Valid(content) {
		c.Text = string(content)
	} else {
		c.Blob = content
	}
	return nil, nil
}
