package e2b

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Times after which a sandbox ends if its creator names none, in seconds.
const (
	defaultTimeout       = 300
	defaultLegacyTimeout = 15
	// minResumed is the least time after which one is paused again that was
	// continued by its use.
	minResumed = 300
)

// operations are the calls of the control plane.
func (s *Server) operations() map[string]handler {
	return map[string]handler{
		"POST /v2/sandboxes":              s.create,
		"POST /sandboxes":                 s.create,
		"GET /v2/sandboxes":               s.list,
		"GET /sandboxes":                  s.list,
		"GET /sandboxes/{id}":             s.info,
		"DELETE /sandboxes/{id}":          s.kill,
		"POST /sandboxes/{id}/timeout":    s.setTimeout,
		"POST /sandboxes/{id}/refreshes":  s.refresh,
		"POST /sandboxes/{id}/pause":      s.pause,
		"POST /sandboxes/{id}/resume":     s.resume,
		"POST /sandboxes/{id}/connect":    s.connect,
		"POST /v2/sandboxes/{id}/connect": s.connect,
		"POST /sandboxes/{id}/snapshots":  s.snapshot,
		"GET /snapshots":                  s.snapshots,
		"POST /v3/templates":              s.requestBuild,
		"POST /v2/templates":              s.requestBuild,
		"GET /templates":                  s.listTemplates,
		"DELETE /templates/{id}":          s.deleteTemplate,
		"GET /templates/{id}/{part}":      s.templatePart,
		"POST /templates/tags":            s.setTags,
		"DELETE /templates/tags":          s.removeTags,

		"GET /templates/{id}/files/{hash}":          s.uploadLink,
		"POST /v2/templates/{id}/builds/{build}":    s.startBuild,
		"GET /templates/{id}/builds/{build}/status": s.buildStatus,

		"POST /sandboxes/{id}/fork":   s.fork,
		"GET /sandboxes/{id}/metrics": s.metrics,
		"PUT /sandboxes/{id}/network": s.setNetwork,

		"GET /v2/sandboxes/{id}/logs": s.logs,
		"GET /sandboxes/{id}/logs":    s.logs,

		"POST /volumes":        s.createVolume,
		"GET /volumes":         s.listVolumes,
		"GET /volumes/{id}":    s.volumeInfo,
		"DELETE /volumes/{id}": s.deleteVolume,
	}
}

// Operations returns the calls of the control plane, "GET /sandboxes/{id}", in order.
func (s *Server) Operations() []string { return slices.Sorted(maps.Keys(s.operations())) }

func (s *Server) controlRoutes() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, h := range s.operations() {
		mux.HandleFunc(pattern, s.authenticated(h))
	}
	mux.HandleFunc("PUT /templates/files/{hash}", s.receiveUpload)
	for prefix, what := range map[string]string{
		"/templates/": "this call for templates",
		"/volumes":    "volumes", "/volumes/": "volumes", "/volumecontent/": "volumes", "/secrets": "secrets", "/secrets/": "secrets",
		"/api-keys": "API keys", "/teams": "teams", "/teams/": "teams", "/events/": "webhooks",
	} {
		mux.HandleFunc(prefix, unserved(what))
	}
	mux.HandleFunc("/", notFound)
	return mux
}

// authenticated serves a call of the control plane with the identity of its key.
func (s *Server) authenticated(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("X-API-Key")
		if key == "" {
			fail(w, errs.New(errs.Unauthenticated, "the request has no API key (X-API-Key)").WithHint("set E2B_API_KEY; `r key create` makes a key"))
			return
		}
		c, err := s.cfg.Authenticate(r.Context(), key)
		if err != nil {
			fail(w, err)
			return
		}
		defer c.Release()
		code, v, err := h(r.Context(), newCaller(c.Conn, c.Project), w, r)
		if err != nil {
			fail(w, err)
			return
		}
		answer(w, code, v)
	}
}

// createRequest describes a sandbox.
type createRequest struct {
	TemplateID    string            `json:"templateID"`
	Timeout       *int64            `json:"timeout"` // seconds
	Metadata      map[string]string `json:"metadata"`
	EnvVars       map[string]string `json:"envVars"`
	AllowInternet *bool             `json:"allow_internet_access"`
	Network       *network          `json:"network"`
	AutoPause     bool              `json:"autoPause"`
	AutoPauseMem  *bool             `json:"autoPauseMemory"`
	AutoResume    *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	MCP          map[string]any `json:"mcp"`
	IAM          map[string]any `json:"iam"`
	VolumeMounts []volumeMount  `json:"volumeMounts"`
}

// unserved names what a request asks for and the server lacks; "" if nothing.
func (q *createRequest) unserved() string {
	switch {
	case q.AutoPause && q.AutoPauseMem != nil && !*q.AutoPauseMem:
		return "a pause that keeps files only (keepMemory: false)"
	case len(q.MCP) > 0:
		return "an MCP gateway in the sandbox (mcp)"
	case len(q.IAM) > 0:
		return "tokens of workloads (iam)"
	case len(q.VolumeMounts) > 0 && strings.HasPrefix(q.TemplateID, snapshotPrefix):
		return "volumes in a sandbox that is made from a snapshot (volumeMounts)"
	}
	return q.Network.unserved()
}

// resumed returns the time to live of the sandbox after each resume if it is to be
// paused at its time-out, and adds what says whether its use resumes it.
func (q *createRequest) resumed(seconds int64, labels map[string]string) (*time.Duration, error) {
	auto := q.AutoResume != nil && q.AutoResume.Enabled
	switch {
	case !q.AutoPause && auto:
		return nil, errs.New(errs.InvalidArgument, "autoResume needs autoPause (onTimeout: pause)")
	case !q.AutoPause:
		return nil, nil
	case auto:
		labels[labelAutoResume] = "true"
	}
	t := ttl(max(seconds, minResumed))
	return &t, nil
}

func (s *Server) create(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q createRequest
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	if what := q.unserved(); what != "" {
		return 0, nil, missing(what)
	}
	egress, err := q.Network.egress(q.AllowInternet)
	if err != nil {
		return 0, nil, err
	}
	seconds := int64(defaultTimeout)
	if r.URL.Path == "/sandboxes" {
		seconds = defaultLegacyTimeout
	}
	if q.Timeout != nil {
		seconds = *q.Timeout
	}
	template := cmp.Or(q.TemplateID, "base")
	labels := labelsOf(q.Metadata)
	labels[labelTemplate] = template
	resume, err := q.resumed(seconds, labels)
	if err != nil {
		return 0, nil, err
	}
	ttl := ttl(seconds)
	var sb *sandbox.Sandbox
	if snap, err := c.snapshotNamed(ctx, template); err != nil {
		return 0, nil, err
	} else if snap != "" {
		forks, err := c.forks(ctx, &sandbox.ForkRequest{Snapshot: snap, Labels: labels, Env: q.EnvVars, TTL: &ttl, ResumeTTL: resume})
		if err != nil {
			return 0, nil, err
		}
		sb = forks[0]
		if egress != nil {
			if _, err := c.sandboxes.SetEgress(ctx, &sandbox.EgressRequest{Sandbox: sb.GetID(), Egress: *egress}); err != nil {
				return 0, nil, s.abandon(ctx, c, sb, err)
			}
		}
	} else {
		resp, err := c.sandboxes.Run(ctx, &sandbox.RunRequest{
			Project: c.project, Template: templateName(template), Labels: labels, EnvSecret: q.EnvVars, TTL: &ttl, ResumeTTL: resume, Egress: egress, Volumes: volumeRequests(q.VolumeMounts),
		})
		if err != nil {
			return 0, nil, err
		}
		if sb, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
			return 0, nil, err
		}
		if err := c.running(ctx, sb); err != nil {
			return 0, nil, s.abandon(ctx, c, sb, err)
		}
	}
	if err := c.setTraffic(ctx, sb.GetID(), q.Network); err != nil {
		return 0, nil, s.abandon(ctx, c, sb, err)
	}
	return http.StatusCreated, s.described(sb), nil
}

// abandon deletes a sandbox that the caller does not get, because of err.
func (s *Server) abandon(ctx context.Context, c *caller, sb *sandbox.Sandbox, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if derr := c.sandboxes.Delete(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()}); derr != nil {
		s.cfg.Logger.Warn("delete a sandbox that did not start", "sandbox", string(sb.ID), "error", derr)
	}
	return err
}

// running waits until a sandbox runs.
func (c *caller) running(ctx context.Context, sb *sandbox.Sandbox) error {
	if sb.Status.Phase == sandbox.SandboxPhaseRunning {
		return nil
	}
	resp, err := c.sandboxes.Wait(ctx, &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: sandbox.WaitUntilRunning})
	if err != nil {
		return err
	}
	now, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	if err != nil {
		return err
	}
	if now.Status.Phase.Ended() {
		return errs.New(errs.Internal, "sandbox %s did not start: %s", sb.ID, now.Status.Message)
	}
	*sb = *now
	return nil
}

// connection tells a client how to reach a sandbox.
type connection struct {
	TemplateID         string `json:"templateID"`
	SandboxID          string `json:"sandboxID"`
	ClientID           string `json:"clientID"`
	EnvdVersion        string `json:"envdVersion"`
	EnvdAccessToken    string `json:"envdAccessToken"`
	TrafficAccessToken string `json:"trafficAccessToken"`
	Alias              string `json:"alias,omitempty"`
}

func (s *Server) described(sb *sandbox.Sandbox) connection {
	return connection{
		TemplateID: sb.Labels[labelTemplate], SandboxID: publicID(sb.ID), ClientID: "runtime", EnvdVersion: envdVersion,
		EnvdAccessToken: s.token(sb.GetID()), TrafficAccessToken: s.trafficToken(sb.GetID()), Alias: sb.Labels[labelTemplate],
	}
}

// sandbox returns the sandbox of a request; NotFound also if it has ended.
func (c *caller) sandbox(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, c.store, sandboxID(name))
	if errs.Is(err, errs.NotFound) || err == nil && over(sb) {
		return nil, errs.New(errs.NotFound, "sandbox %s does not exist", name)
	}
	return sb, err
}

func (s *Server) kill(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, c.sandboxes.Delete(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()})
}
