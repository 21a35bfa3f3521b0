package mcpserver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// States of a sandbox, as clients see them.
const (
	stateCreating   = "creating"
	stateReady      = "ready"   // it waits for work
	stateRunning    = "running" // processes run in it
	statePaused     = "paused"  // the next use continues it
	stateTerminated = "terminated"
)

const (
	networkNone = "none"
	networkAll  = "all"
	// startTimeout bounds the time until a sandbox is ready: the first one of a
	// template makes its image.
	startTimeout = 10 * time.Minute
	// maxListed bounds the sandboxes of a list.
	maxListed = 200
)

type networkInput struct {
	Network    string   `json:"network,omitempty" jsonschema:"what the sandbox reaches: none (default), or all that the firewall permits"`
	AllowHosts []string `json:"allow_hosts,omitempty" jsonschema:"the only hosts that it reaches: domains such as pypi.org or *.example.com, addresses or networks; instead of network"`
}

// egress returns what a sandbox may reach.
func (s *session) egress(in networkInput) (*sandbox.Egress, error) {
	open := in.Network == networkAll || len(in.AllowHosts) > 0
	switch {
	case open && s.NoNetwork:
		return nil, errs.New(errs.PermissionDenied, "this server gives sandboxes no network").WithHint("work without it, or ask the user to start the server without --no-network")
	case in.Network == networkAll && len(in.AllowHosts) > 0:
		return nil, errs.New(errs.InvalidArgument, "network is all, and allow_hosts names hosts").WithHint("give one of both")
	case len(in.AllowHosts) > 0:
		return &sandbox.Egress{Mode: sandbox.EgressModeList, Allow: in.AllowHosts}, nil
	case open:
		return nil, nil
	}
	return &sandbox.Egress{Mode: sandbox.EgressModeNone}, nil
}

// networkOf returns what a sandbox reaches, in a word.
func networkOf(t *sandbox.SandboxTemplate) (mode string, hosts []string) {
	switch {
	case t.Network == sandbox.NetworkModeNone:
		return networkNone, nil
	case t.Egress == nil:
		return networkAll, nil
	}
	return string(t.Egress.Mode), t.Egress.Allow
}

type createInput struct {
	Template   string            `json:"template,omitempty" jsonschema:"what it is made of: base, code-interpreter-v1 (Python with data analysis, needed by run_cell), a language, or another template; default base"`
	Language   string            `json:"language,omitempty" jsonschema:"language whose template it is made of; instead of template"`
	Name       string            `json:"name,omitempty" jsonschema:"name, unique in the project: lower-case letters, digits and dashes"`
	Env        map[string]string `json:"env,omitempty" jsonschema:"environment variables of all its processes"`
	CPU        float64           `json:"cpu,omitempty" jsonschema:"CPU limit, such as 0.5 or 2; default: the template's"`
	MemoryMiB  int64             `json:"memory_mib,omitempty" jsonschema:"memory limit in MiB; default: the template's"`
	TTLSeconds int64             `json:"ttl_seconds,omitempty" jsonschema:"it ends after so many seconds; default: with the session"`
	networkInput
}

type sandboxOutput struct {
	ID         string            `json:"id"`
	Name       string            `json:"name,omitempty"`
	State      string            `json:"state" jsonschema:"creating, ready (it waits for work), running (processes run in it), paused (the next use continues it) or terminated"`
	Template   string            `json:"template,omitempty" jsonschema:"template that it is made of, with the number of its version"`
	Session    bool              `json:"session" jsonschema:"this session made it and ends it"`
	CreatedAt  time.Time         `json:"created_at"`
	EndsAt     *time.Time        `json:"ends_at,omitempty"`
	EndedAt    *time.Time        `json:"ended_at,omitempty"`
	Reason     string            `json:"reason,omitempty" jsonschema:"why it ended"`
	Message    string            `json:"message,omitempty"`
	Workdir    string            `json:"workdir,omitempty" jsonschema:"its working directory; relative paths are below it"`
	Network    string            `json:"network" jsonschema:"none, all, or list: only allow_hosts"`
	AllowHosts []string          `json:"allow_hosts,omitempty"`
	CPU        float64           `json:"cpu"`
	MemoryMiB  int64             `json:"memory_mib"`
	Labels     map[string]string `json:"labels,omitempty"`
}

func (s *session) describe(ctx context.Context, sb *sandbox.Sandbox, state string) *sandboxOutput {
	t := &sb.Spec.Template
	out := &sandboxOutput{
		ID: string(sb.ID), Name: sb.Name, State: state, Template: s.templateOf(ctx, sb.Spec.TemplateVersion), Session: s.owns(sb.GetID()), CreatedAt: sb.CreatedAt,
		EndedAt: sb.Status.EndedAt, Reason: string(sb.Status.Reason), Message: sb.Status.Message, Workdir: t.Workdir,
		CPU: float64(t.Resources.CPUMillis) / 1000, MemoryMiB: t.Resources.MemoryBytes >> 20, Labels: sb.Labels,
	}
	out.Network, out.AllowHosts = networkOf(t)
	if from := cmp.Or(sb.Spec.ClaimedAt, sb.Status.StartedAt); from != nil && sb.Spec.TTL != nil {
		ends := from.Add(*sb.Spec.TTL)
		out.EndsAt = &ends
	}
	return out
}

// templateOf returns the name and number of a version of a template, or its id if
// it cannot be read.
func (s *session) templateOf(ctx context.Context, version id.TemplateVersion) string {
	if version == "" {
		return ""
	}
	s.mu.Lock()
	known := s.templates[version]
	s.mu.Unlock()
	if known != "" {
		return known
	}
	v, err := entity.Get[sandbox.TemplateVersion](ctx, s.store, version)
	if err != nil {
		return string(version)
	}
	t, err := entity.Get[sandbox.Template](ctx, s.store, v.Spec.Template)
	if err != nil {
		return string(version)
	}
	name := fmt.Sprintf("%s:%d", t.Name, v.Spec.Number)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.templates[version] = name
	return name
}

// state returns the state of a sandbox and its processes beside the main one.
func (s *session) state(ctx context.Context, sb *sandbox.Sandbox) (string, []sandbox.Process, error) {
	switch sb.Status.Phase {
	case sandbox.SandboxPhasePaused, sandbox.SandboxPhasePausing:
		return statePaused, nil, nil
	case sandbox.SandboxPhaseStopping, sandbox.SandboxPhaseStopped, sandbox.SandboxPhaseFailed:
		return stateTerminated, nil, nil
	case sandbox.SandboxPhaseRunning:
		if sb.Spec.Desired == sandbox.DesiredStateStopped {
			return stateTerminated, nil, nil
		}
		if sb.Status.Ready {
			break
		}
		fallthrough
	default:
		return stateCreating, nil, nil
	}
	resp, err := s.sandboxes.Processes(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.FailedPrecondition) { // it has just ended
		return stateTerminated, nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	live := slices.DeleteFunc(resp.Processes, func(p sandbox.Process) bool { return p.ExitCode != nil })
	if len(live) > 0 || !sb.Spec.Template.Idle {
		return stateRunning, live, nil
	}
	return stateReady, nil, nil
}

// request returns the part of a request for a sandbox of a template that every
// one of the session has.
func (s *session) request(in networkInput, template string) (sandbox.RunRequest, error) {
	l := &s.Limits
	if name, _, _ := strings.Cut(template, ":"); len(l.Templates) > 0 && !slices.Contains(l.Templates, name) {
		return sandbox.RunRequest{}, errs.New(errs.PermissionDenied, "this server has no sandboxes of template %s", name).
			WithHint("use one of %s", strings.Join(l.Templates, ", "))
	}
	if l.Open && in.Network == "" && len(in.AllowHosts) == 0 {
		in.Network = networkAll
	}
	egress, err := s.egress(in)
	if err != nil {
		return sandbox.RunRequest{}, err
	}
	return sandbox.RunRequest{
		Project: s.Project, Labels: map[string]string{label: s.name}, Egress: egress, IdleTimeout: &s.Idle, OnIdle: s.onIdle(),
		CPUMillis: set(l.CPUMillis), MemoryBytes: set(l.MemoryBytes), DiskBytes: set(l.DiskBytes), TTL: set(l.TTL),
	}, nil
}

// set returns a pointer to a value, nil if it is zero.
func set[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// resources gives a request the limits that a client asks for.
func (s *session) resources(req *sandbox.RunRequest, in *createInput) error {
	beyond := func(what string, wanted, most int64) error {
		return errs.New(errs.PermissionDenied, "%s is %d, this server gives sandboxes at most %d", what, wanted, most).WithHint("ask for less")
	}
	if cpu := int64(in.CPU * 1000); cpu != 0 {
		if most := s.Limits.CPUMillis; most > 0 && cpu > most {
			return beyond("cpu, in thousandths,", cpu, most)
		}
		req.CPUMillis = &cpu
	}
	if mib := in.MemoryMiB; mib != 0 {
		if most := s.Limits.MemoryBytes >> 20; most > 0 && mib > most {
			return beyond("memory_mib", mib, most)
		}
		req.MemoryBytes = new(mib << 20)
	}
	if in.TTLSeconds != 0 {
		ttl := time.Duration(in.TTLSeconds) * time.Second
		if most := s.Limits.TTL; most > 0 {
			ttl = min(ttl, most)
		}
		req.TTL = &ttl
	}
	return nil
}

// onIdle is what happens to sandboxes of the session that nobody uses.
func (s *session) onIdle() sandbox.IdleAction {
	if s.Keep {
		return sandbox.IdleActionPause
	}
	return sandbox.IdleActionStop
}

func (s *session) createSandbox(ctx context.Context, c *call, in *createInput) (*sandboxOutput, error) {
	template := cmp.Or(in.Template, s.Limits.Template, languages.Templates()[0].Name)
	if in.Language != "" {
		if in.Template != "" {
			return nil, errs.New(errs.InvalidArgument, "both template and language are given").WithHint("give one of both")
		}
		lang, err := languages.Lookup(in.Language)
		if err != nil {
			return nil, err
		}
		template = lang.Template
	}
	req, err := s.request(in.networkInput, template)
	if err != nil {
		return nil, err
	}
	req.Name, req.Env, req.Template = in.Name, in.Env, template
	if err := s.resources(&req, in); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	c.say("creating a sandbox of template %s", req.Template)
	resp, err := s.sandboxes.Run(ctx, &req)
	if err != nil {
		return nil, err
	}
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := s.add(ctx, sb.GetID()); err != nil {
		return nil, err
	}
	return s.ready(ctx, sb.GetID())
}

// ready waits until a new sandbox is ready, and deletes it if that fails.
func (s *session) ready(ctx context.Context, sid id.Sandbox) (*sandboxOutput, error) {
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	resp, err := s.sandboxes.Wait(wait, &sandbox.WaitRequest{Sandbox: sid, Until: sandbox.WaitUntilReady})
	if err == nil {
		var sb *sandbox.Sandbox
		if sb, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err == nil && !sb.Status.Phase.Ended() {
			return s.describe(ctx, sb, stateReady), nil
		}
		if err == nil {
			err = errs.New(errs.FailedPrecondition, "the sandbox ended while it was created: %s", cmp.Or(sb.Status.Message, string(sb.Status.Reason)))
		}
	}
	away, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if derr := s.delete(away, sid); derr != nil {
		s.Logger.Warn("cannot delete a sandbox that is not ready", "sandbox", sid, "error", derr)
	}
	return nil, err
}

type listInput struct {
	All bool `json:"all,omitempty" jsonschema:"also those that have terminated and are still known"`
}

type listOutput struct {
	Sandboxes []*sandboxOutput `json:"sandboxes"`
	More      bool             `json:"more" jsonschema:"there are more than 200"`
}

func (s *session) listSandboxes(ctx context.Context, _ *call, in *listInput) (*listOutput, error) {
	project, err := s.projectID(ctx)
	if err != nil {
		return nil, err
	}
	all, _, err := entity.List[sandbox.Sandbox](ctx, s.store, entity.Query{Project: project})
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(sb *sandbox.Sandbox) bool { return !visible(sb) || sb.Status.Phase.Ended() && !in.All })
	slices.SortFunc(all, func(a, b *sandbox.Sandbox) int { return b.CreatedAt.Compare(a.CreatedAt) })
	out := &listOutput{More: len(all) > maxListed, Sandboxes: make([]*sandboxOutput, min(len(all), maxListed))}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range out.Sandboxes {
		g.Go(func() error {
			state, _, err := s.state(ctx, all[i])
			out.Sandboxes[i] = s.describe(ctx, all[i], state)
			return err
		})
	}
	return out, g.Wait()
}

type sandboxInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
}

type processOutput struct {
	ID        string    `json:"id"`
	PID       int64     `json:"pid"`
	Command   []string  `json:"command"`
	StartedAt time.Time `json:"started_at"`
}

type describeOutput struct {
	sandboxOutput
	Phase       string          `json:"phase" jsonschema:"the exact phase: pending, scheduled, creating, running, pausing, paused, stopping, stopped or failed"`
	CPUSeconds  float64         `json:"cpu_seconds,omitempty" jsonschema:"CPU time used"`
	MemoryBytes int64           `json:"memory_bytes,omitempty" jsonschema:"memory used"`
	Processes   []processOutput `json:"processes,omitempty"`
	Ports       []int64         `json:"ports,omitempty" jsonschema:"TCP ports on which processes listen"`
}

func (s *session) describeSandbox(ctx context.Context, _ *call, in *sandboxInput) (*describeOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	state, live, err := s.state(ctx, sb)
	if err != nil {
		return nil, err
	}
	out := &describeOutput{sandboxOutput: *s.describe(ctx, sb, state), Phase: string(sb.Status.Phase)}
	for _, p := range live {
		out.Processes = append(out.Processes, processOutput{p.ID, p.PID, p.Command, p.StartedAt})
	}
	if state != stateReady && state != stateRunning {
		return out, nil
	}
	req := &sandbox.SandboxRequest{Sandbox: sb.GetID()}
	ports, err := s.sandboxes.Ports(ctx, req)
	if err != nil {
		return nil, err
	}
	stats, err := s.sandboxes.Stats(ctx, req)
	if err != nil {
		return nil, err
	}
	out.Ports, out.CPUSeconds, out.MemoryBytes = ports.Ports, stats.CPU.Seconds(), stats.MemoryBytes
	return out, nil
}

type setNetworkInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	networkInput
}

func (s *session) setNetwork(ctx context.Context, _ *call, in *setNetworkInput) (*sandboxOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	egress, err := s.egress(in.networkInput)
	if err != nil {
		return nil, err
	}
	if egress == nil {
		egress = &sandbox.Egress{Mode: sandbox.EgressModeAll}
	}
	resp, err := s.sandboxes.SetEgress(ctx, &sandbox.EgressRequest{Sandbox: sb.GetID(), Egress: *egress})
	if err != nil {
		return nil, err
	}
	if sb, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
		return nil, err
	}
	state, _, err := s.state(ctx, sb)
	if err != nil {
		return nil, err
	}
	return s.describe(ctx, sb, state), nil
}

func (s *session) stopSandbox(ctx context.Context, c *call, in *sandboxInput) (*sandboxOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.say("stopping sandbox %s", sb.ID)
	resp, err := s.sandboxes.Stop(ctx, &sandbox.StopRequest{Sandbox: sb.GetID(), Wait: new(true)})
	if err != nil {
		return nil, err
	}
	if sb, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
		return nil, err
	}
	return s.describe(ctx, sb, stateTerminated), nil
}
