package mcpserver

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/entity"
)

// maxCompletions bounds the values of an answer, as the protocol says.
const maxCompletions = 100

// completer returns values for what the client has typed, and whether there are
// more than it could look at. given has the values of other arguments.
type completer func(s *session, ctx context.Context, typed string, given map[string]string) (values []string, more bool, err error)

// completers are those of the arguments of prompts and of resource templates, by
// their names, with the tool that shows the same.
var completers = map[string]struct {
	tool     string
	complete completer
}{
	"language": {"run_code", completeLanguage},
	"template": {"create_sandbox", (*session).completeTemplate},
	"sandbox":  {"list_sandboxes", (*session).completeSandbox},
	"path":     {"list_files", (*session).completePath},
}

// complete answers with values for an argument of a prompt or of a resource
// template. An argument that can be anything, and one that does not exist, has
// none.
func (s *session) complete(ctx context.Context, req *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	res := &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{}}}
	c, ok := completers[req.Params.Argument.Name]
	if !ok || !s.has(c.tool) || !s.takes(req.Params.Ref, req.Params.Argument.Name) {
		return res, nil
	}
	var given map[string]string
	if req.Params.Context != nil {
		given = req.Params.Context.Arguments
	}
	values, more, err := c.complete(s, ctx, req.Params.Argument.Value, given)
	if err != nil {
		return nil, toolError(err)
	}
	slices.Sort(values)
	values = slices.Compact(values)
	n := min(len(values), maxCompletions)
	if !more {
		res.Completion.Total = len(values)
	}
	res.Completion.HasMore = more || n < len(values)
	res.Completion.Values = append(res.Completion.Values, values[:n]...)
	return res, nil
}

// takes reports whether a prompt or a resource template of the session has an
// argument.
func (s *session) takes(ref *sdk.CompleteReference, argument string) bool {
	if ref.Type == "ref/resource" {
		return slices.ContainsFunc(resourceTemplates(), func(t resourceTemplate) bool {
			return t.URITemplate == ref.URI && s.has(t.needs...) && strings.Contains(t.URITemplate, argument+"}")
		})
	}
	return slices.ContainsFunc(prompts(), func(p prompt) bool {
		return p.Name == ref.Name && s.has(p.needs...) &&
			slices.ContainsFunc(p.Arguments, func(a *sdk.PromptArgument) bool { return a.Name == argument })
	})
}

func completeLanguage(_ *session, _ context.Context, typed string, _ map[string]string) (values []string, _ bool, _ error) {
	for _, l := range languages.All() {
		if strings.HasPrefix(l.Name, strings.ToLower(typed)) {
			values = append(values, l.Name)
		}
	}
	return values, false, nil
}

func (s *session) completeTemplate(ctx context.Context, typed string, _ map[string]string) (values []string, _ bool, _ error) {
	resp, err := sandbox.NewTemplatesClient(s.Client).List(ctx, &sandbox.TemplatesRequest{Project: s.Project})
	if err != nil {
		return nil, false, err
	}
	for i := range resp.Templates {
		name := resp.Templates[i].Name
		if strings.HasPrefix(name, typed) && (len(s.Limits.Templates) == 0 || slices.Contains(s.Limits.Templates, name)) {
			values = append(values, name)
		}
	}
	return values, false, nil
}

// completeSandbox returns names, and ids of sandboxes without a name or whose id
// was begun.
func (s *session) completeSandbox(ctx context.Context, typed string, _ map[string]string) (values []string, _ bool, _ error) {
	project, err := s.projectID(ctx)
	if err != nil {
		return nil, false, err
	}
	all, _, err := entity.List[sandbox.Sandbox](ctx, s.store, entity.Query{Project: project})
	if err != nil {
		return nil, false, err
	}
	for _, sb := range all {
		if !visible(sb) || sb.Status.Phase.Ended() || s.permits(&sb.Spec.Template, "") != nil {
			continue
		}
		switch id := string(sb.ID); {
		case typed == "":
			values = append(values, cmp.Or(sb.Name, id))
		case sb.Name != "" && strings.HasPrefix(sb.Name, typed):
			values = append(values, sb.Name)
		case strings.HasPrefix(id, typed):
			values = append(values, id)
		}
	}
	return values, false, nil
}

// completePath returns absolute paths in the sandbox that the client has chosen,
// those of directories with a slash. It resumes no paused sandbox.
func (s *session) completePath(ctx context.Context, typed string, given map[string]string) (values []string, more bool, _ error) {
	if given["sandbox"] == "" || typed != "" && typed[0] != '/' {
		return nil, false, nil
	}
	sb, err := s.find(ctx, given["sandbox"])
	if err != nil || !awake(sb) {
		return nil, false, err
	}
	dir, begun := path.Split(cmp.Or(typed, "/"))
	add := func(name string, f *sandbox.FileInfo) {
		if f.Type == sandbox.FileTypeDirectory {
			name += "/"
		}
		values = append(values, dir+name)
	}
	if begun != "" { // the list begins after it
		if f, err := s.files.Stat(ctx, &sandbox.FileRequest{Sandbox: sb.GetID(), Path: typed}); err == nil {
			add(begun, f)
		}
	}
	resp, err := s.files.List(ctx, &sandbox.ListFilesRequest{Sandbox: sb.GetID(), Path: dir, After: begun, Limit: new(int64(filesPage))})
	if err != nil {
		return values, false, nil // there is no such directory
	}
	more = resp.More
	for i := range resp.Files {
		f := &resp.Files[i]
		if !strings.HasPrefix(f.Name, begun) {
			more = more && f.Name < begun
			break
		}
		add(f.Name, f)
	}
	return values, more, nil
}

// awake reports whether a sandbox runs and is not about to be paused or ended.
func awake(sb *sandbox.Sandbox) bool {
	return sb.Status.Phase == sandbox.SandboxPhaseRunning && sb.Status.Ready && sb.Spec.Desired == sandbox.DesiredStateRunning
}
