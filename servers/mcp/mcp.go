// Package mcpserver serves sandboxes by the Model Context Protocol, over standard
// input and output or by HTTP. It is a client of the RPC server: permissions,
// quotas and the audit hold there, and `r mcp` runs it on any machine.
//
// A session is the connection of one client. It deletes the sandboxes that it
// made when it ends, unless it keeps them. Each of them has an idle time-out as
// well, for a session that is lost.
package mcpserver

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/version"
)

const (
	// DefaultIdle is the idle time-out of a session's sandboxes.
	DefaultIdle = 30 * time.Minute
	// DefaultMaxOutput bounds each stream of a process and each part of a file in
	// an answer, in bytes.
	DefaultMaxOutput = 64 << 10
	// label is the label of sandboxes that sessions made; its value names the session.
	label = "mcp-session"
	// cleanupTimeout bounds the deletion of a session's sandboxes.
	cleanupTimeout = 20 * time.Second
	// maxFrame bounds a message of the client, in bytes.
	maxFrame = 32 << 20
)

// Options configure a session.
type Options struct {
	Client    rpc.Conn      // the RPC server, with the identity of the session's user
	Project   string        // name of the project of all sandboxes; "": default
	Tools     []string      // names of tools, and of groups of them; empty: all
	NoNetwork bool          // no sandbox of the session reaches a network
	Keep      bool          // the session's sandboxes stay, and are paused when they are idle
	Idle      time.Duration // idle time-out of the session's sandboxes; 0: DefaultIdle
	Files     string        // folder of this machine from and to which files are copied; "": none
	MaxOutput int           // bytes of a stream in an answer; 0: DefaultMaxOutput
	MaxFile   int64         // bytes of a file that a tool copies or writes; 0: any
	Limits    Limits        // of sandboxes and processes
	Logger    *slog.Logger  // nil: no log

	versions []string // of the protocol; nil: all that the SDK knows
}

// Limits are the defaults of sandboxes and processes, and what clients may ask for.
type Limits struct {
	Template    string        // of a sandbox whose client names none; "": base
	Templates   []string      // the only ones that clients may name; empty: all
	CPUMillis   int64         // default and maximum; 0: the template's, and any
	MemoryBytes int64         // default and maximum; 0: the template's, and any
	DiskBytes   int64         // of the root disk; 0: the template's
	Open        bool          // a sandbox reaches a network unless its client asks for none
	TTL         time.Duration // longest life of a sandbox; 0: none
	RunTimeout  time.Duration // of a process whose client states none; 0: 5 minutes
}

// session is the state of one session. It is safe for concurrent use.
type session struct {
	Options
	name      string // value of its sandboxes' label
	sandboxes sandbox.SandboxesClient
	files     sandbox.FilesClient
	code      interpreter.InterpreterClient
	store     entity.Store
	server    *sdk.Server
	enabled   []string      // names of its tools
	ended     chan struct{} // closed when the client has gone
	end       func()        // closes ended
	follower  *follower

	mu      sync.Mutex
	project schema.ID // of the project; "" before the first call that needs it
	made    map[id.Sandbox]struct{}
	// templates has the names of versions of templates.
	templates map[id.TemplateVersion]string
}

// newSession returns a session with its tools. InvalidArgument for an unknown
// tool.
func newSession(o Options) (*session, error) {
	if o.Project == "" {
		o.Project = "default"
	}
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	if o.MaxOutput == 0 {
		o.MaxOutput = DefaultMaxOutput
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &session{
		Options: o, name: strings.ToLower(rand.Text()), made: map[id.Sandbox]struct{}{}, templates: map[id.TemplateVersion]string{}, ended: make(chan struct{}),
		sandboxes: sandbox.NewSandboxesClient(o.Client), files: sandbox.NewFilesClient(o.Client),
		code: interpreter.NewInterpreterClient(o.Client), store: remote.New(o.Client),
	}
	following, stop := context.WithCancel(context.Background())
	s.end = sync.OnceFunc(func() {
		close(s.ended)
		stop()
	})
	s.follower = newFollower(following, s)
	s.server = sdk.NewServer(&sdk.Implementation{Name: "miren-runtime", Title: "Miren Runtime sandboxes", Version: version.Get().Version}, &sdk.ServerOptions{
		Instructions: instructions, Capabilities: &sdk.ServerCapabilities{}, SupportedProtocolVersions: o.versions,
		CompletionHandler: s.complete, SubscribeHandler: s.follower.subscribe, UnsubscribeHandler: s.follower.unsubscribe,
	})
	if err := s.addTools(); err != nil {
		return nil, err
	}
	s.addResources()
	s.addPrompts()
	return s, nil
}

// ServeStdio serves one session on in and out until the client closes in or ctx
// ends. Errors: InvalidArgument for an unknown tool, and those of out.
func ServeStdio(ctx context.Context, o Options, in io.Reader, out io.Writer) error {
	s, err := newSession(o)
	if err != nil {
		return err
	}
	err = s.server.Run(ctx, &sdk.IOTransport{Reader: &input{in, s.end}, Writer: output{out}, MaxLineLength: maxFrame})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, s.close(ctx))
}

// input ends the session at the end of the client's messages.
type input struct {
	io.Reader
	end func()
}

func (i *input) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	if err != nil {
		i.end()
	}
	return n, err
}

func (i *input) Close() error { return nil }

type output struct{ io.Writer }

func (output) Close() error { return nil }

// close ends the calls of the session and deletes its sandboxes, if they are not
// kept.
func (s *session) close(ctx context.Context) error {
	s.end()
	s.follower.close()
	if s.Keep {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	g := &errgroup.Group{}
	g.SetLimit(16)
	for sid := range s.made {
		g.Go(func() error { return s.delete(ctx, sid) })
	}
	err := g.Wait()
	s.made = nil
	return errs.Wrap(err, "delete the sandboxes of the session")
}

func (s *session) delete(ctx context.Context, sid id.Sandbox) error {
	err := s.sandboxes.Delete(ctx, &sandbox.SandboxRequest{Sandbox: sid})
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

// add makes sandboxes part of the session, with which they end. It deletes them
// if the session has ended.
func (s *session) add(ctx context.Context, sids ...id.Sandbox) error {
	if err := s.own(ctx, sids...); err != nil {
		return err
	}
	s.follower.list(ctx, sids...)
	return nil
}

func (s *session) own(ctx context.Context, sids ...id.Sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err := errEnded()
		for _, sid := range sids {
			err = errs.New(errs.Unavailable, "%w", errors.Join(err, s.delete(ctx, sid)))
		}
		return err
	}
	for _, sid := range sids {
		s.made[sid] = struct{}{}
	}
	return nil
}

// owns reports whether the session made a sandbox.
func (s *session) owns(sid id.Sandbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.made[sid]
	return ok
}

// projectID returns the id of the session's project.
func (s *session) projectID(ctx context.Context) (schema.ID, error) {
	s.mu.Lock()
	known := s.project
	s.mu.Unlock()
	if known != "" {
		return known, nil
	}
	p, err := entity.ByName[core.Project](ctx, s.store, "", s.Project)
	if errs.Is(err, errs.NotFound) {
		return "", errs.New(errs.NotFound, "project %q does not exist", s.Project)
	}
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	s.project = p.ID
	s.mu.Unlock()
	return p.ID, nil
}

// find returns a sandbox of the project by its id or name. Sandboxes of apps, of
// warm pools and of executions are not found.
func (s *session) find(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	project, err := s.projectID(ctx)
	if err != nil {
		return nil, err
	}
	missing := errs.New(errs.NotFound, "sandbox %q does not exist in project %s", name, s.Project).
		WithHint("list_sandboxes lists the sandboxes, create_sandbox makes one")
	if name == "" {
		return nil, errs.New(errs.InvalidArgument, "the sandbox is missing").WithHint("give its id or name; create_sandbox makes one")
	}
	var sb *sandbox.Sandbox
	if strings.HasPrefix(name, sandbox.SandboxKind.Prefix+"-") {
		sb, err = entity.Get[sandbox.Sandbox](ctx, s.store, schema.ID(name))
	}
	if sb == nil && (err == nil || errs.Is(err, errs.NotFound) || errs.Is(err, errs.InvalidArgument)) {
		sb, err = entity.ByName[sandbox.Sandbox](ctx, s.store, project, name)
	}
	switch {
	case errs.Is(err, errs.NotFound):
		return nil, missing
	case err != nil:
		return nil, err
	case sb.Project != project || !visible(sb):
		return nil, missing
	}
	return sb, s.permits(&sb.Spec.Template, "sandbox "+string(sb.ID))
}

// permits returns PermissionDenied for what reaches a network, if no sandbox of
// the session may.
func (s *session) permits(t *sandbox.SandboxTemplate, what string) error {
	if mode, _ := networkOf(t); s.NoNetwork && mode != networkNone {
		return errs.New(errs.PermissionDenied, "%s reaches a network, which this server does not permit", what).WithHint("use a sandbox that this session made")
	}
	return nil
}

// visible reports whether a sandbox is one that tools may use.
func visible(sb *sandbox.Sandbox) bool {
	return sb.Spec.App == "" && sb.Spec.Pool == "" && sb.Spec.WarmPool == "" && sb.Spec.Execution == ""
}
