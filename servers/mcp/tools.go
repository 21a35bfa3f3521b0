package mcpserver

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

const instructions = `Sandboxes are isolated Linux machines in which code runs. For one program call run_code without a sandbox. For
several steps call create_sandbox once and give its id to the other tools; files stay until it ends. A sandbox reaches no
network unless network is "all" or allow_hosts names hosts; installing packages needs it. Sandboxes of this session end
with it. Long output is cut in its middle: write it to a file and read parts of it with read_file.`

// Groups of tools, which Options.Tools may name.
const (
	groupSandboxes = "sandboxes"
	groupCode      = "code"
	groupFiles     = "files"
	groupSnapshots = "snapshots"
)

// tool is one entry of the table of tools.
type tool struct {
	name, group, title, doc string
	hints                   sdk.ToolAnnotations
	needs                   func(*session) bool // whether a session can have it; nil: always
	bind                    func(*session, *sdk.Tool)
}

var (
	readOnly = sdk.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)}
	creates  = sdk.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(false)}
	repeats  = sdk.ToolAnnotations{DestructiveHint: new(true), IdempotentHint: true, OpenWorldHint: new(false)}
	executes = sdk.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(true)}
)

// tools returns the table of tools.
func tools() []tool {
	return []tool{
		{
			name: "create_sandbox", group: groupSandboxes, title: "Create a sandbox", hints: creates, bind: bind((*session).createSandbox),
			doc: "Creates a sandbox and returns when it is ready. It ends with the session, or when it is idle for long.",
		},
		{
			name: "list_sandboxes", group: groupSandboxes, title: "List sandboxes", hints: readOnly, bind: bind((*session).listSandboxes),
			doc: "Lists the sandboxes of the project that have not terminated.",
		},
		{
			name: "describe_sandbox", group: groupSandboxes, title: "Describe a sandbox", hints: readOnly, bind: bind((*session).describeSandbox),
			doc: "Returns a sandbox with its state, limits, use, processes and the TCP ports on which they listen.",
		},
		{
			name: "stop_sandbox", group: groupSandboxes, title: "Stop a sandbox", hints: repeats, bind: bind((*session).stopSandbox),
			doc: "Terminates a sandbox. Its processes and files are gone.",
		},
		{
			name: "pause_sandbox", group: groupSandboxes, title: "Pause a sandbox", hints: repeats, bind: bind((*session).pauseSandbox),
			doc: "Saves memory and files of a sandbox and ends its processes, which its next use continues.",
		},
		{
			name: "resume_sandbox", group: groupSandboxes, title: "Resume a sandbox", hints: repeats, bind: bind((*session).resumeSandbox),
			doc: "Continues a paused sandbox.",
		},
		{
			name: "set_network", group: groupSandboxes, title: "Change what a sandbox reaches", hints: repeats, bind: bind((*session).setNetwork),
			needs: func(s *session) bool { return !s.NoNetwork },
			doc:   "Changes what a sandbox reaches on the network, connections that are open included.",
		},
		{
			name: "run_code", group: groupCode, title: "Run a program", hints: executes, bind: bind((*session).runCode),
			doc: "Runs a program in a language, compiling it if need be, and returns its output and exit code. Without a sandbox it runs in a new one, " +
				"which is deleted afterwards. In a sandbox the program is written to a file of the working directory, main.py or as file says, and replaces it.",
		},
		{
			name: "run_command", group: groupCode, title: "Run a shell command", hints: executes, bind: bind((*session).runCommand),
			doc: "Runs a command line by /bin/sh in a sandbox and returns its output and exit code. Its processes end when it is cancelled or its time is over.",
		},
		{
			name: "start_process", group: groupCode, title: "Start a process", hints: executes, bind: bind((*session).startProcess),
			doc: "Starts a command line by /bin/sh in a sandbox, such as a server, and returns at once. It goes on without the call; its last output is kept.",
		},
		{
			name: "read_process", group: groupCode, title: "Read a process's output", hints: executes, bind: bind((*session).readProcess),
			doc: "Returns what a process that start_process started has printed, and its exit code if it has ended. It waits a second for its end, or as long as asked.",
		},
		{
			name: "stop_process", group: groupCode, title: "Stop a process", hints: repeats, bind: bind((*session).stopProcess),
			doc: "Ends a process that start_process started, by SIGTERM and 5 s later by SIGKILL, and returns its last output.",
		},
		{
			name: "run_cell", group: groupCode, title: "Run code whose variables stay", hints: executes, bind: bind((*session).runCell),
			doc: "Runs code like a cell of a notebook, in a sandbox of template code-interpreter-v1. Variables, imports and the working directory stay for the " +
				"next call. Returns what it prints, the value of its last expression, and plots as images.",
		},
		{
			name: "install_packages", group: groupCode, title: "Install packages", hints: executes, bind: bind((*session).installPackages),
			doc: "Installs packages of a language in a sandbox that reaches a network, for programs in its working directory.",
		},
		{
			name: "write_file", group: groupFiles, title: "Write a file", hints: repeats, bind: bind((*session).writeFile),
			doc: "Writes a file of a sandbox, replacing it if it exists. Missing directories are made.",
		},
		{
			name: "read_file", group: groupFiles, title: "Read a file", hints: readOnly, bind: bind((*session).readFile),
			doc: "Reads a file of a sandbox, or a part of it. Text comes as it is, other content in base64.",
		},
		{
			name: "list_files", group: groupFiles, title: "List files", hints: readOnly, bind: bind((*session).listFiles),
			doc: "Lists a directory of a sandbox, by name. An answer has a page of it.",
		},
		{
			name: "remove_file", group: groupFiles, title: "Remove a file", hints: repeats, bind: bind((*session).removeFile),
			doc: "Removes a file of a sandbox, or a directory with everything in it.",
		},
		{
			name: "upload_file", group: groupFiles, title: "Upload a file", hints: repeats, bind: bind((*session).uploadFile), needs: hasFiles,
			doc: "Copies a file of the user's machine into a sandbox.",
		},
		{
			name: "download_file", group: groupFiles, title: "Download a file", hints: creates, bind: bind((*session).downloadFile), needs: hasFiles,
			doc: "Copies a file of a sandbox to a new file of the user's machine.",
		},
		{
			name: "snapshot_sandbox", group: groupSnapshots, title: "Take a snapshot", hints: creates, bind: bind((*session).takeSnapshot),
			doc: "Saves memory and files of a sandbox, which goes on. The snapshot stays until it is deleted; fork_sandbox makes sandboxes from it.",
		},
		{
			name: "list_snapshots", group: groupSnapshots, title: "List snapshots", hints: readOnly, bind: bind((*session).listSnapshots),
			doc: "Lists the snapshots of the project.",
		},
		{
			name: "fork_sandbox", group: groupSnapshots, title: "Fork a sandbox", hints: creates, bind: bind((*session).forkSandbox),
			doc: "Makes sandboxes that go on from where a running sandbox or a snapshot is, with its memory, processes and files.",
		},
		{
			name: "delete_snapshot", group: groupSnapshots, title: "Delete a snapshot", hints: repeats, bind: bind((*session).deleteSnapshot),
			doc: "Deletes a snapshot. Sandboxes that were made from it go on.",
		},
	}
}

// ToolNames returns the names of all tools, and those of their groups.
func ToolNames() (names, groups []string) {
	for _, t := range tools() {
		names = append(names, t.name)
		if !slices.Contains(groups, t.group) {
			groups = append(groups, t.group)
		}
	}
	return names, groups
}

// CheckTools returns InvalidArgument if a name is neither that of a tool nor that
// of a group.
func CheckTools(wanted []string) error {
	names, groups := ToolNames()
	all := slices.Concat(names, groups)
	for _, w := range wanted {
		if slices.Contains(all, w) {
			continue
		}
		err := errs.New(errs.InvalidArgument, "there is no tool %q", w)
		list := "the tools are " + strings.Join(names, ", ") + "; groups of them are " + strings.Join(groups, ", ")
		if near := suggest.Nearest(w, all); near != "" {
			list = "did you mean " + near + "? " + list
		}
		return err.WithHint("%s", list)
	}
	return nil
}

// addTools gives the server the tools that the session has.
func (s *session) addTools() error {
	if err := CheckTools(s.Tools); err != nil {
		return err
	}
	for _, t := range tools() {
		if len(s.Tools) > 0 && !slices.Contains(s.Tools, t.name) && !slices.Contains(s.Tools, t.group) || t.needs != nil && !t.needs(s) {
			continue
		}
		hints := t.hints
		t.bind(s, &sdk.Tool{Name: t.name, Title: t.title, Description: t.doc, Annotations: &hints})
		s.enabled = append(s.enabled, t.name)
	}
	return nil
}

// has reports whether the session has all of the tools.
func (s *session) has(tools ...string) bool {
	return !slices.ContainsFunc(tools, func(t string) bool { return !slices.Contains(s.enabled, t) })
}

// shown is a result with content of its own; others are shown as JSON.
type shown interface{ content() []sdk.Content }

// bind makes a method of the session the handler of a tool.
func bind[In, Out any](h func(*session, context.Context, *call, *In) (*Out, error)) func(*session, *sdk.Tool) {
	return func(s *session, t *sdk.Tool) {
		t.InputSchema = inputSchema[In]()
		sdk.AddTool(s.server, t, func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, *Out, error) {
			ctx, cancel := s.bound(ctx)
			defer cancel()
			c := newCall(ctx, req)
			out, err := h(s, ctx, c, &in)
			c.end()
			if err != nil {
				return nil, nil, toolError(err)
			}
			res := &sdk.CallToolResult{}
			if v, ok := any(out).(shown); ok {
				res.Content = v.content()
			}
			return res, out, nil
		})
	}
}

// bound returns a context that ends with the session too.
func (s *session) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-s.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-done }
}

// inputSchema returns the schema of a tool's arguments. Arguments with the name
// language are one of the table of languages.
func inputSchema[In any]() *jsonschema.Schema {
	sc, err := jsonschema.For[In](nil)
	if err != nil {
		panic("arguments of a tool: " + err.Error())
	}
	if l := sc.Properties["language"]; l != nil {
		for _, lang := range languages.All() {
			l.Enum = append(l.Enum, lang.Name)
		}
	}
	if n := sc.Properties["network"]; n != nil {
		n.Enum = []any{networkNone, networkAll}
	}
	return sc
}

// toolError returns an error for a client: what failed, and what to do.
func toolError(err error) error {
	text := err.Error()
	// Hints that name commands of r are for people at a terminal.
	if hint := errs.HintOf(err); hint != "" && !strings.Contains(hint, "`r ") {
		text += "\n" + hint
	}
	return errors.New(text)
}
