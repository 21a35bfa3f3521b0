package e2b

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// endless is the end of a sandbox that has none. Clients expect one.
var endless = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// described is a sandbox as E2B's API describes it.
type description struct {
	TemplateID    string            `json:"templateID"`
	Alias         string            `json:"alias,omitempty"`
	SandboxID     string            `json:"sandboxID"`
	ClientID      string            `json:"clientID"`
	StartedAt     time.Time         `json:"startedAt"`
	EndAt         time.Time         `json:"endAt"`
	CPUCount      int64             `json:"cpuCount"`
	MemoryMB      int64             `json:"memoryMB"`
	DiskSizeMB    int64             `json:"diskSizeMB"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	State         string            `json:"state"`
	EnvdVersion   string            `json:"envdVersion"`
	AllowInternet *bool             `json:"allowInternetAccess,omitempty"`
	Network       *network          `json:"network,omitempty"`
	Lifecycle     lifecycle         `json:"lifecycle"`

	// Of a single sandbox.
	EnvdAccessToken string `json:"envdAccessToken,omitempty"`
}

const (
	stateRunning = "running"
	statePaused  = "paused"
)

func stateOf(sb *sandbox.Sandbox) string {
	if sb.Spec.Desired == sandbox.DesiredStatePaused || sb.Spec.ResumeTTL != nil && time.Now().After(endOfLife(sb)) {
		return statePaused
	}
	return stateRunning
}

func startOf(sb *sandbox.Sandbox) time.Time {
	switch {
	case sb.Spec.ClaimedAt != nil:
		return *sb.Spec.ClaimedAt
	case sb.Status.StartedAt != nil:
		return *sb.Status.StartedAt
	}
	return sb.CreatedAt
}

// endOfLife returns the time at which a sandbox ends or, with ResumeTTL, is
// paused.
func endOfLife(sb *sandbox.Sandbox) time.Time {
	if sb.Spec.TTL == nil {
		return endless
	}
	return startOf(sb).Add(*sb.Spec.TTL)
}

// over reports whether a sandbox has ended, or is about to because its time is over.
// For clients both are the same, whatever they call.
func over(sb *sandbox.Sandbox) bool {
	return sb.Status.Phase.Ended() || sb.Spec.Desired == sandbox.DesiredStateStopped ||
		sb.Spec.ResumeTTL == nil && sb.Status.StartedAt != nil && time.Now().After(endOfLife(sb))
}

// lifecycle says what happens to a sandbox at its time-out, and when it is used
// afterwards.
type lifecycle struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

func lifecycleOf(sb *sandbox.Sandbox) lifecycle {
	l := lifecycle{"kill", sb.Labels[labelAutoResume] != ""}
	if sb.Spec.ResumeTTL != nil {
		l.OnTimeout = "pause"
	}
	return l
}

func describe(sb *sandbox.Sandbox) description {
	res := sb.Spec.Template.Resources
	network, internet := networkOf(sb.Spec.Template.Egress)
	return description{
		TemplateID: sb.Labels[labelTemplate], Alias: sb.Labels[labelTemplate], SandboxID: publicID(sb.ID), ClientID: "runtime",
		StartedAt: startOf(sb), EndAt: endOfLife(sb), CPUCount: max(1, (res.CPUMillis+999)/1000), MemoryMB: res.MemoryBytes >> 20, DiskSizeMB: res.DiskBytes >> 20,
		Metadata: metadataOf(sb.Labels), State: stateOf(sb), EnvdVersion: envdVersion, Network: network, AllowInternet: internet,
		Lifecycle: lifecycleOf(sb),
	}
}

func (s *Server) info(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	d := describe(sb)
	err = c.sandboxes.CheckExec(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	switch {
	case err == nil:
		d.EnvdAccessToken = s.token(sb.GetID())
	case !errs.Is(err, errs.PermissionDenied): // who may only read gets no token
		return 0, nil, err
	}
	return http.StatusOK, d, nil
}

// Sandboxes of a page.
const (
	defaultPage = 100
	maxPage     = 1000
)

// page reads how many entries of a list a client wants, and from where.
func page(q url.Values) (limit int, cursor string, err error) {
	limit = defaultPage
	if v := q.Get("limit"); v != "" {
		if limit, err = strconv.Atoi(v); err != nil || limit < 1 {
			return 0, "", errs.New(errs.InvalidArgument, "limit %q is no positive number", v)
		}
	}
	return min(limit, maxPage), q.Get("nextToken"), nil
}

// list lists sandboxes, those of a page by the time of their creation.
func (s *Server) list(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	q := r.URL.Query()
	limit, cursor, err := page(q)
	if err != nil {
		return 0, nil, err
	}
	project, err := c.projectID(ctx)
	if err != nil {
		return 0, nil, err
	}
	labels, err := selected(q)
	if err != nil {
		return 0, nil, err
	}
	var states []string
	for _, v := range q["state"] {
		states = append(states, strings.Split(v, ",")...)
	}
	var after time.Time
	if v := q.Get("startedAfter"); v != "" {
		if after, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return 0, nil, errs.New(errs.InvalidArgument, "startedAfter %q is no time", v)
		}
	}
	found := []description{}
	for { // those that were filtered out leave room for others
		p, err := c.store.List(ctx, entity.Query{Kind: sandbox.KindSandbox, Project: project, Labels: labels, Limit: limit - len(found), Cursor: cursor})
		if err != nil {
			return 0, nil, err
		}
		for i := range p.Records {
			sb, err := entity.Decode[sandbox.Sandbox](&p.Records[i])
			if err != nil {
				return 0, nil, err
			}
			d := describe(sb)
			if sb.Labels[labelTemplate] == "" || over(sb) || len(states) > 0 && !slices.Contains(states, d.State) || d.StartedAt.Before(after) {
				continue
			}
			found = append(found, d)
		}
		if cursor = p.Cursor; cursor == "" || len(found) == limit {
			break
		}
	}
	slices.SortFunc(found, func(a, b description) int {
		if q.Get("order") == "asc" {
			a, b = b, a
		}
		return cmp.Or(b.StartedAt.Compare(a.StartedAt), strings.Compare(a.SandboxID, b.SandboxID))
	})
	if cursor != "" {
		w.Header().Set("X-Next-Token", cursor)
	}
	return http.StatusOK, found, nil
}

// selected returns the labels that a list's parameters ask for. Clients encode
// keys and values of the metadata before they encode the whole.
func selected(q url.Values) (map[string]string, error) {
	labels := map[string]string{}
	metadata, err := url.ParseQuery(q.Get("metadata"))
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "metadata: %w", err)
	}
	for k, v := range metadata {
		key, err := url.PathUnescape(k)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "metadata: %w", err)
		}
		value, err := url.PathUnescape(v[0])
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "metadata: %w", err)
		}
		labels[labelOf(key)] = value
	}
	if t := q.Get("template"); t != "" {
		labels[labelTemplate] = t
	}
	return labels, nil
}

// projectID returns the id of the caller's project.
func (c *caller) projectID(ctx context.Context) (schema.ID, error) {
	p, err := entity.ByName[core.Project](ctx, c.store, "", cmp.Or(c.project, "default"))
	if err != nil {
		return "", err
	}
	return p.ID, nil
}

// metric is one reading of a sandbox's use. E2B's API has no word for a value
// that was not measured: diskUsed and memCache are 0.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int64     `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// metricTime is the time over which the use of CPU is measured.
const metricTime = 200 * time.Millisecond

// metrics measures what a sandbox uses now. It has no history.
func (s *Server) metrics(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	sb, err := c.sandbox(ctx, r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	if stateOf(sb) == statePaused {
		return http.StatusOK, []metric{}, nil
	}
	a, err := c.sandboxes.Stats(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	if err != nil {
		return 0, nil, err
	}
	select {
	case <-time.After(metricTime):
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	b, err := c.sandboxes.Stats(ctx, &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	if err != nil {
		return 0, nil, err
	}
	d := describe(sb)
	m := metric{
		Timestamp: b.At, TimestampUnix: b.At.Unix(), CPUCount: d.CPUCount, MemUsed: b.MemoryBytes,
		MemTotal: sb.Spec.Template.Resources.MemoryBytes, DiskTotal: sb.Spec.Template.Resources.DiskBytes,
	}
	if span := b.At.Sub(a.At); span > 0 {
		m.CPUUsedPct = 100 * float64(b.CPU-a.CPU) / float64(span) / float64(d.CPUCount)
	}
	return http.StatusOK, []metric{m}, nil
}
