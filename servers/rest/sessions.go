package rest

import (
	"cmp"
	"context"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/session"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

// Session is a sandbox, or an execution with a sandbox of its own.
type Session = session.Session

// Egress is what a session may reach.
type Egress struct {
	Mode  string   `json:"mode" enum:"none,all,list" doc:"none; all; or what allow lists."`
	Allow []string `json:"allow,omitempty" maxItems:"100" doc:"Networks, addresses, domains and *.DOMAIN, for list."`
	Deny  []string `json:"deny,omitempty" maxItems:"100" doc:"The same, for all and list; deny wins."`
}

func (e *Egress) policy() *sandbox.Egress {
	if e == nil {
		return nil
	}
	return &sandbox.Egress{Mode: sandbox.EgressMode(e.Mode), Allow: e.Allow, Deny: e.Deny}
}

// CreateSession describes a session to create.
type CreateSession struct {
	Mode               string            `json:"mode,omitempty" enum:"persistent,ephemeral" default:"persistent" doc:"ephemeral needs execute."`
	Name               string            `json:"name,omitempty" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name, unique among the project's sandboxes; persistent only."`
	Labels             map[string]string `json:"labels,omitempty" doc:"Labels."`
	Template           string            `json:"template,omitempty" maxLength:"200" doc:"Template: NAME, NAME:TAG or NAME:NUMBER; a warm sandbox serves if there is one." example:"python"`
	Image              string            `json:"image,omitempty" maxLength:"512" doc:"Image; without template and image: debian."`
	Agent              string            `json:"agent,omitempty" maxLength:"200" doc:"With template: names the agent, which gets the sandbox that it has."`
	Env                map[string]string `json:"env,omitempty" doc:"Environment variables."`
	EnvSecret          map[string]string `json:"env_secret,omitempty" doc:"Environment variables whose values are encrypted and never shown."`
	CPUMillis          *int64            `json:"cpu_millis,omitempty" minimum:"10" maximum:"1024000" doc:"CPU, in thousandths."`
	MemoryBytes        *int64            `json:"memory_bytes,omitempty" minimum:"33554432" doc:"Memory."`
	DiskBytes          *int64            `json:"disk_bytes,omitempty" minimum:"1048576" doc:"Bytes that it may write; persistent only."`
	Network            string            `json:"network,omitempty" enum:"bridge,none" doc:"Network; absent: bridge."`
	Egress             *Egress           `json:"egress,omitempty" doc:"What it may reach; absent: all that the node's firewall permits."`
	TTLSeconds         *int64            `json:"ttl_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"It ends this long after its start; absent: never. Persistent only."`
	IdleTimeoutSeconds *int64            `json:"idle_timeout_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"Time without use after which on_idle happens; persistent only."`
	OnIdle             string            `json:"on_idle,omitempty" enum:"stop,pause" doc:"What happens then; absent: stop."`
	Volumes            []MountRequest    `json:"volumes,omitempty" maxItems:"16" doc:"Volumes to mount in it; persistent only."`
	Execute            *Execute          `json:"execute,omitempty" doc:"Ephemeral only: what it executes."`
}

type createSessionInput struct {
	Key         string `header:"Idempotency-Key" maxLength:"200" doc:"Names the request: another one with the key and the same body gets the session of the first, as long as the server keeps that."`
	WaitSeconds Wait   `query:"wait" minimum:"0" maximum:"300" doc:"Longest time until the session runs, or has ended if it is ephemeral, in seconds. Then it is returned as it is."`
	Body        CreateSession
}

// defaultWait is the Wait of a request that states none.
const defaultWait = 60

// Wait is a number of seconds in a query. The library sets a field that is 0 to
// the default of its tag, also if the request states 0; this one stays 0.
type Wait struct {
	Value  int64
	stated bool
}

// Receiver implements huma.ParamWrapper.
func (w *Wait) Receiver() reflect.Value { return reflect.ValueOf(w).Elem().Field(0) }

// OnParamSet implements huma.ParamReactor; an absent parameter makes no call.
func (w *Wait) OnParamSet(stated bool, _ any) { w.stated = stated }

// seconds returns the time, in seconds.
func (w *Wait) seconds() int64 {
	if !w.stated {
		return defaultWait
	}
	return w.Value
}

// Schema implements huma.SchemaProvider.
func (Wait) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeInteger, Format: "int64", Default: defaultWait}
}

type created struct {
	Location string `header:"Location"`
	Body     Session
}

// SessionInput names a session. (Exported, as are the other embedded types, since
// the library fills exported fields only.)
type SessionInput struct {
	ID string `path:"id" maxLength:"63" pattern:"^(sb|exec)-[a-z0-9]+$" doc:"Id of the session." example:"sb-4k2j7q"`
}

// persistent returns the id of the sandbox. FailedPrecondition for an ephemeral session.
func (in *SessionInput) persistent() (id.Sandbox, error) {
	if in.ephemeral() {
		return "", errs.New(errs.FailedPrecondition, "session %s is ephemeral: it runs one program and nothing else", in.ID).
			WithHint("create one with mode persistent")
	}
	return id.Sandbox(in.ID), nil
}

func (in *SessionInput) ephemeral() bool { return strings.HasPrefix(in.ID, "exec-") }

func registerSessions(a huma.API) {
	const tag = "sessions"
	register(a, op(http.MethodPost, "/sessions", "create-session", tag, "Create a session", status(http.StatusCreated)), createSession)
	register(a, op(http.MethodGet, "/sessions", "list-sessions", tag, "List the persistent sessions of the project"), listSessions)
	register(a, op(http.MethodGet, "/sessions/{id}", "get-session", tag, "Get a session"), getSession)
	register(a, op(http.MethodDelete, "/sessions/{id}", "delete-session", tag, "Delete a persistent session, cancel an ephemeral one", status(http.StatusNoContent)), deleteSession)
	register(a, op(http.MethodPost, "/sessions/{id}/extend", "extend-session", tag, "Change the time to live of a session"), extendSession)
	register(a, op(http.MethodPost, "/sessions/{id}/pause", "pause-session", tag, "Save a session and end its processes, which resume continues"), pauseSession)
	register(a, op(http.MethodPost, "/sessions/{id}/resume", "resume-session", tag, "Continue a paused session"), resumeSession)
	register(a, op(http.MethodPost, "/sessions/{id}/commands", "run-command", tag, "Run a command in a session and return its output"), runCommand)
}

func createSession(ctx context.Context, in *createSessionInput) (*created, error) {
	b := &in.Body
	if (b.Mode == session.Ephemeral) != (b.Execute != nil) {
		return nil, errs.New(errs.InvalidArgument, "execute belongs to sessions with mode ephemeral, which need it")
	}
	if b.Mode == session.Ephemeral {
		return createEphemeral(ctx, in)
	}
	caller := callerFrom(ctx)
	req := &sandbox.RunRequest{
		Project: caller.Project(), Name: b.Name, Labels: b.Labels, Template: b.Template, Image: b.Image, Agent: b.Agent, Env: b.Env, EnvSecret: b.EnvSecret,
		CPUMillis: b.CPUMillis, MemoryBytes: b.MemoryBytes, DiskBytes: b.DiskBytes, Network: sandbox.NetworkMode(b.Network), Egress: b.Egress.policy(),
		TTL: seconds(b.TTLSeconds), IdleTimeout: seconds(b.IdleTimeoutSeconds), OnIdle: sandbox.IdleAction(b.OnIdle), Idle: opt.Of(true),
		Volumes: mountRequests(b.Volumes),
	}
	if req.Template == "" && req.Image == "" {
		req.Image = "debian"
	}
	sb, err := runIdempotent(ctx, in.Key, b, req)
	if err != nil {
		return nil, err
	}
	if sb, err = waitFor(ctx, sb, sandbox.WaitUntilRunning, in.WaitSeconds.seconds()); err != nil {
		return nil, err
	}
	return &created{Prefix + "/sessions/" + string(sb.ID), session.Of(sb)}, nil
}

func createEphemeral(ctx context.Context, in *createSessionInput) (*created, error) {
	b := &in.Body
	if b.Name != "" || b.DiskBytes != nil || b.TTLSeconds != nil || b.IdleTimeoutSeconds != nil || b.OnIdle != "" || len(b.Volumes) > 0 {
		return nil, errs.New(errs.InvalidArgument, "name, disk_bytes, ttl_seconds, idle_timeout_seconds, on_idle and volumes belong to persistent sessions")
	}
	req, err := b.Execute.request(callerFrom(ctx).Project(), in.Key)
	if err != nil {
		return nil, err
	}
	req.Template, req.Image, req.Agent, req.Labels = cmp.Or(b.Template, req.Template), b.Image, b.Agent, merged(req.Labels, b.Labels)
	req.CPUMillis, req.MemoryBytes, req.Network, req.Egress = b.CPUMillis, b.MemoryBytes, sandbox.NetworkMode(b.Network), b.Egress.policy()
	for k, v := range b.Env {
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		if _, ok := req.Env[k]; !ok {
			req.Env[k] = v
		}
	}
	req.EnvSecret = b.EnvSecret
	e, err := submit(ctx, req, in.WaitSeconds.seconds())
	if err != nil {
		return nil, err
	}
	return &created{Prefix + "/sessions/" + string(e.ID), session.OfExecution(e)}, nil
}

func sandboxes(ctx context.Context) sandbox.SandboxesClient {
	return sandbox.NewSandboxesClient(callerFrom(ctx).Client)
}

func sandboxOf(resp *sandbox.SandboxResponse, err error) (*sandbox.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return entity.Decode[sandbox.Sandbox](&resp.Sandbox)
}

func sessionAnswer(resp *sandbox.SandboxResponse, err error) (*body[Session], error) {
	sb, err := sandboxOf(resp, err)
	if err != nil {
		return nil, err
	}
	return &body[Session]{session.Of(sb)}, nil
}

// waitFor waits for some time until a sandbox has come so far, and returns it as it is then.
func waitFor(ctx context.Context, sb *sandbox.Sandbox, until sandbox.WaitUntil, limit int64) (*sandbox.Sandbox, error) {
	if limit == 0 || sb.Status.Phase == sandbox.SandboxPhaseRunning {
		return sb, nil
	}
	wctx, cancel := context.WithTimeout(ctx, time.Duration(limit)*time.Second)
	defer cancel()
	now, err := sandboxOf(sandboxes(ctx).Wait(wctx, &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: until}))
	if errs.Is(err, errs.DeadlineExceeded) && ctx.Err() == nil {
		return findSandbox(ctx, sb.GetID())
	}
	return now, err
}

func findSandbox(ctx context.Context, sid id.Sandbox) (*sandbox.Sandbox, error) {
	return entity.Get[sandbox.Sandbox](ctx, remote.New(callerFrom(ctx).Client), sid)
}

type listSessionsInput struct {
	State  string   `query:"state" enum:"creating,running,pausing,paused,ending,ended,failed" doc:"Only sessions in this state."`
	Name   string   `query:"name" maxLength:"63" doc:"Only the session with this name."`
	Agent  string   `query:"agent" maxLength:"200" doc:"Only sessions of this agent."`
	Label  []string `query:"label,explode" maxItems:"16" doc:"Only sessions with this label, KEY=VALUE; all of several."`
	Limit  int      `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Most sessions of a page. A page may have fewer although others follow."`
	Cursor string   `query:"cursor" maxLength:"1024" doc:"next_cursor of the page before."`
}

// SessionPage is a page of a list.
type SessionPage struct {
	Sessions   []Session `json:"sessions" doc:"Sessions, in the order of their ids."`
	NextCursor string    `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func listSessions(ctx context.Context, in *listSessionsInput) (*body[SessionPage], error) {
	labels, err := selectedLabels(in.Label)
	if err != nil {
		return nil, err
	}
	page, err := remote.New(callerFrom(ctx).Client).List(ctx, entity.Query{
		Kind: sandbox.KindSandbox, Name: in.Name, Labels: labels, Limit: in.Limit, Cursor: in.Cursor,
	})
	if err != nil {
		return nil, err
	}
	out := SessionPage{Sessions: []Session{}, NextCursor: page.Cursor}
	for i := range page.Records {
		sb, err := entity.Decode[sandbox.Sandbox](&page.Records[i])
		if err != nil {
			return nil, err
		}
		one := session.Of(sb)
		// Those of apps and of executions, and those that wait in a pool, are no sessions.
		if session.PurposeOf(sb) != session.ForSession || in.State != "" && one.State != in.State || in.Agent != "" && one.Agent != in.Agent {
			continue
		}
		out.Sessions = append(out.Sessions, one)
	}
	return &body[SessionPage]{out}, nil
}

func getSession(ctx context.Context, in *SessionInput) (*body[Session], error) {
	if in.ephemeral() {
		e, err := findExecution(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return &body[Session]{session.OfExecution(e)}, nil
	}
	sb, err := findSandbox(ctx, id.Sandbox(in.ID))
	if err != nil {
		return nil, err
	}
	return &body[Session]{session.Of(sb)}, nil
}

func deleteSession(ctx context.Context, in *SessionInput) (*struct{}, error) {
	if in.ephemeral() {
		_, err := executions(ctx).Cancel(ctx, &execution.CancelRequest{Project: callerFrom(ctx).Project(), Execution: in.ID})
		return nil, err
	}
	return nil, sandboxes(ctx).Delete(ctx, &sandbox.SandboxRequest{Sandbox: id.Sandbox(in.ID)})
}

type extendInput struct {
	SessionInput
	Body struct {
		TTLSeconds *int64 `json:"ttl_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"It ends this long after now; absent: never."`
	}
}

func extendSession(ctx context.Context, in *extendInput) (*body[Session], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	return sessionAnswer(sandboxes(ctx).Extend(ctx, &sandbox.ExtendRequest{Sandbox: sid, TTL: seconds(in.Body.TTLSeconds)}))
}

func pauseSession(ctx context.Context, in *SessionInput) (*body[Session], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	return sessionAnswer(sandboxes(ctx).Pause(ctx, &sandbox.PauseRequest{Sandbox: sid, Wait: opt.Of(true)}))
}

func resumeSession(ctx context.Context, in *SessionInput) (*body[Session], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	return sessionAnswer(sandboxes(ctx).Resume(ctx, &sandbox.PauseRequest{Sandbox: sid, Wait: opt.Of(true)}))
}
