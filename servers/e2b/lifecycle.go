package e2b

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// timeoutRequest states when a sandbox ends, in seconds from now.
type timeoutRequest struct {
	Timeout  *int64 `json:"timeout"`
	Duration *int64 `json:"duration"` // of refreshes
	Memory   *bool  `json:"memory"`
	Count    int64  `json:"count"`
}

func (s *Server) setTimeout(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q timeoutRequest
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	if q.Timeout == nil {
		return 0, nil, errs.New(errs.InvalidArgument, "timeout is missing: seconds from now until the sandbox ends")
	}
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	if stateOf(sb) == statePaused {
		return 0, nil, errs.New(errs.NotFound, "sandbox %s is paused, so it has no time-out", publicID(sb.ID))
	}
	return http.StatusNoContent, nil, c.extend(ctx, sb.GetID(), ttl(*q.Timeout))
}

// refresh moves the end of a sandbox away, never nearer.
func (s *Server) refresh(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q timeoutRequest
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	seconds := int64(defaultLegacyTimeout)
	if q.Duration != nil {
		seconds = *q.Duration
	}
	return http.StatusNoContent, nil, c.prolong(ctx, sb, ttl(seconds))
}

// extend sets the end of a sandbox; 0: none.
func (c *caller) extend(ctx context.Context, sid id.Sandbox, ttl time.Duration) error {
	q := &sandbox.ExtendRequest{Sandbox: sid}
	if ttl > 0 {
		q.TTL = &ttl
	}
	_, err := c.sandboxes.Extend(ctx, q)
	return err
}

// prolong is extend, unless the sandbox ends later anyway.
func (c *caller) prolong(ctx context.Context, sb *sandbox.Sandbox, ttl time.Duration) error {
	if !time.Now().Add(ttl).After(describe(sb).EndAt) {
		return nil
	}
	return c.extend(ctx, sb.GetID(), ttl)
}

// pause saves a sandbox. Its time-out does not go on meanwhile, unless the policy of
// the project bounds its life.
func (s *Server) pause(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q timeoutRequest
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	if q.Memory != nil && !*q.Memory {
		return 0, nil, missing("a pause that keeps files only (keepMemory: false)")
	}
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	if stateOf(sb) == statePaused {
		return 0, nil, errs.New(errs.Conflict, "sandbox %s is paused already", publicID(sb.ID))
	}
	yes := true
	if _, err := c.sandboxes.Pause(ctx, &sandbox.PauseRequest{Sandbox: sb.GetID(), Wait: &yes}); err != nil {
		return 0, nil, err
	}
	if err := c.extend(ctx, sb.GetID(), 0); err != nil && !policies.Refused(err) {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, nil
}

// wake continues a paused sandbox, which from then on has its time to live again.
func (c *caller) wake(ctx context.Context, sid id.Sandbox, ttl time.Duration) error {
	yes := true
	if _, err := c.sandboxes.Resume(ctx, &sandbox.PauseRequest{Sandbox: sid, Wait: &yes}); err != nil {
		return err
	}
	return c.extend(ctx, sid, ttl)
}

func (s *Server) resume(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	code, v, err := s.connect(ctx, c, w, r)
	if err == nil && code == http.StatusOK {
		return 0, nil, errs.New(errs.Conflict, "sandbox %s runs already", r.PathValue("id"))
	}
	return code, v, err
}

// connect continues a paused sandbox, and moves the end of one that runs.
func (s *Server) connect(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q timeoutRequest
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	if q.Memory != nil && !*q.Memory {
		return 0, nil, missing("continuing a sandbox from its files only (onResume: reboot)")
	}
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	if err := c.sandboxes.CheckExec(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()}); err != nil {
		return 0, nil, err // the answer has a token
	}
	seconds := int64(defaultTimeout)
	if q.Timeout != nil {
		seconds = *q.Timeout
	}
	if stateOf(sb) == statePaused {
		return http.StatusCreated, s.described(sb), c.wake(ctx, sb.GetID(), ttl(seconds))
	}
	return http.StatusOK, s.described(sb), c.prolong(ctx, sb, ttl(seconds))
}

// forks makes sandboxes from another or from a snapshot.
func (c *caller) forks(ctx context.Context, q *sandbox.ForkRequest) ([]*sandbox.Sandbox, error) {
	resp, err := c.sandboxes.Fork(ctx, q)
	if err != nil {
		return nil, err
	}
	var forks []*sandbox.Sandbox
	for i := range resp.Sandboxes {
		sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandboxes[i])
		if err != nil {
			return nil, err
		}
		forks = append(forks, sb)
	}
	return forks, nil
}

func (s *Server) fork(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q timeoutRequest
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	seconds := int64(defaultTimeout)
	if q.Timeout != nil {
		seconds = *q.Timeout
	}
	count, ttl := max(1, q.Count), ttl(seconds)
	forks, err := c.forks(ctx, &sandbox.ForkRequest{Sandbox: sb.GetID(), Count: &count, Labels: sb.Labels, TTL: &ttl, ResumeTTL: sb.Spec.ResumeTTL})
	if err != nil {
		return 0, nil, err
	}
	type result struct {
		Sandbox connection `json:"sandbox"`
	}
	var results []result
	for _, f := range forks {
		results = append(results, result{s.described(f)})
	}
	return http.StatusCreated, results, nil
}

// snapshotInfo describes a snapshot.
type snapshotInfo struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func describeSnapshot(o *sandbox.Snapshot) snapshotInfo {
	i := snapshotInfo{SnapshotID: string(o.ID), Names: []string{}}
	if o.Name != "" {
		i.Names = append(i.Names, o.Name)
	}
	return i
}

func (s *Server) snapshot(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q struct {
		Name string `json:"name"`
	}
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	resp, err := c.sandboxes.Snapshot(ctx, &sandbox.SnapshotRequest{Sandbox: sb.GetID(), Name: q.Name})
	if err != nil {
		return 0, nil, err
	}
	o, err := entity.Decode[sandbox.Snapshot](&resp.Snapshot)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, describeSnapshot(o), nil
}

func (s *Server) snapshots(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	query, err := c.snapshotQuery(ctx, r.URL.Query())
	if err != nil {
		return 0, nil, err
	}
	p, err := c.store.List(ctx, query)
	if err != nil {
		return 0, nil, err
	}
	found := []snapshotInfo{}
	for i := range p.Records {
		o, err := entity.Decode[sandbox.Snapshot](&p.Records[i])
		if err != nil {
			return 0, nil, err
		}
		if o.Status.Phase == sandbox.SnapshotPhaseReady {
			found = append(found, describeSnapshot(o))
		}
	}
	if p.Cursor != "" {
		w.Header().Set("X-Next-Token", p.Cursor)
	}
	return http.StatusOK, found, nil
}

func (c *caller) snapshotQuery(ctx context.Context, q url.Values) (entity.Query, error) {
	query := entity.Query{}
	if name := q.Get("sandboxID"); name != "" {
		query = entity.Where("spec.sandbox", sandboxID(name))
	}
	var err error
	if query.Limit, query.Cursor, err = page(q); err != nil {
		return query, err
	}
	query.Kind, query.Name = sandbox.KindSnapshot, q.Get("name")
	query.Project, err = c.projectID(ctx)
	return query, err
}

// snapshotPrefix is that of the ids of snapshots.
const snapshotPrefix = "snap-"

// snapshotNamed returns the snapshot that a template's name means; "" if it
// means a template.
func (c *caller) snapshotNamed(ctx context.Context, template string) (id.Snapshot, error) {
	if !strings.HasPrefix(template, snapshotPrefix) {
		return "", nil
	}
	o, err := entity.Get[sandbox.Snapshot](ctx, c.store, schema.ID(template))
	if err != nil {
		return "", err
	}
	return o.GetID(), nil
}
