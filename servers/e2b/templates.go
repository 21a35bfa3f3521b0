package e2b

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// This file builds templates. A client asks for a build, uploads files
// (uploads.go), and starts the build with its steps (steps.go). Nothing is stored
// before that: the id of a build says what the client asked for. The id of a
// template is its name.

// tagDefault is the tag that E2B's clients know as that of a name without one.
const (
	tagDefault = "default"
	tagLatest  = "latest"
)

// buildWait is how long the id of a build is known that was not started.
const buildWait = 24 * time.Hour

// buildRequest asks for a build.
type buildRequest struct {
	Name          string   `json:"name"`
	Alias         string   `json:"alias"` // of older clients
	Tags          []string `json:"tags"`
	CPUCount      int64    `json:"cpuCount"`
	MemoryMB      int64    `json:"memoryMB"`
	MinFreeDiskMB int64    `json:"minFreeDiskMB"`
}

// pending is a build that was asked for. Its encoding is the id of the build.
type pending struct {
	Nonce  string   `json:"n"`
	At     int64    `json:"a"` // Unix time
	Tags   []string `json:"t,omitempty"`
	CPU    int64    `json:"c,omitempty"` // millis
	Memory int64    `json:"m,omitempty"` // bytes
	Disk   int64    `json:"d,omitempty"` // bytes
}

func (p *pending) id() string {
	b, _ := json.Marshal(p) // cannot fail
	return base64.RawURLEncoding.EncodeToString(b)
}

func pendingOf(id string) (*pending, error) {
	p := &pending{}
	b, err := base64.RawURLEncoding.DecodeString(id)
	if err == nil {
		err = json.Unmarshal(b, p)
	}
	if err != nil || p.Nonce == "" || time.Since(time.Unix(p.At, 0)) > buildWait {
		return nil, errs.New(errs.NotFound, "there is no build %q", id)
	}
	return p, nil
}

// buildLabel returns the value of labelBuild for the id of a build.
func buildLabel(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// buildUUID returns the id of the build of a version where clients want a UUID.
func buildUUID(v *sandbox.TemplateVersion) string {
	sum := sha256.Sum256([]byte(v.ID))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // version 8, of our own making
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// requestBuild answers a client that wants to build a template.
func (s *Server) requestBuild(_ context.Context, _ *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q buildRequest
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	if q.Name == "" {
		q.Name = q.Alias
	}
	name, tag, _ := strings.Cut(q.Name, ":")
	if name == "" {
		return 0, nil, errs.New(errs.InvalidArgument, "name is missing")
	}
	if tag != "" {
		q.Tags = append(q.Tags, tag)
	}
	if len(q.Tags) > sandbox.MaxTemplateTags {
		return 0, nil, errs.New(errs.InvalidArgument, "%d tags, at most %d are possible", len(q.Tags), sandbox.MaxTemplateTags)
	}
	p := pending{Nonce: rand.Text(), At: time.Now().Unix()}
	for _, x := range []struct {
		field         string
		n, unit, most int64
		into          *int64
	}{
		{"cpuCount", q.CPUCount, 1000, sandbox.MaxCPUMillis, &p.CPU},
		{"memoryMB", q.MemoryMB, 1 << 20, sandbox.MaxMemoryBytes, &p.Memory},
		{"minFreeDiskMB", q.MinFreeDiskMB, 1 << 20, sandbox.MaxDiskBytes, &p.Disk},
	} {
		if most := x.most / x.unit; x.n < 0 || x.n > most {
			return 0, nil, errs.New(errs.InvalidArgument, "%s: %d is not between 0 and %d", x.field, x.n, most)
		}
		*x.into = x.n * x.unit
	}
	for _, t := range q.Tags {
		p.Tags = append(p.Tags, ourTag(t))
	}
	if len(q.Tags) == 0 {
		q.Tags = []string{tagDefault}
	}
	return http.StatusAccepted, map[string]any{
		"templateID": name, "buildID": p.id(), "public": false, "names": []string{name}, "aliases": []string{name}, "tags": q.Tags,
	}, nil
}

// ourTag returns the tag that a client means.
func ourTag(tag string) string {
	if tag == tagDefault {
		return tagLatest
	}
	return tag
}

// theirTag is the reverse of ourTag.
func theirTag(tag string) string {
	if tag == tagLatest {
		return tagDefault
	}
	return tag
}

// templateName returns the name of a template that a client means: the tag
// "default" is that of the name alone.
func templateName(name string) string { return strings.TrimSuffix(name, ":"+tagDefault) }

// templateView is a template with its versions.
type templateView struct {
	template *sandbox.Template
	selected *sandbox.TemplateVersion // nil: none is ready
	versions []*sandbox.TemplateVersion
	builds   []*app.Build
}

func (c *caller) template(ctx context.Context, name string) (*templateView, error) {
	resp, err := c.templates.Show(ctx, &sandbox.TemplateRequest{Project: c.project, Template: templateName(name)})
	if err != nil {
		return nil, err
	}
	v := &templateView{}
	if v.template, err = entity.Decode[sandbox.Template](&resp.Template); err != nil {
		return nil, err
	}
	if resp.Selected != nil {
		if v.selected, err = entity.Decode[sandbox.TemplateVersion](resp.Selected); err != nil {
			return nil, err
		}
	}
	for i := range resp.Versions {
		version, err := entity.Decode[sandbox.TemplateVersion](&resp.Versions[i])
		if err != nil {
			return nil, err
		}
		v.versions = append(v.versions, version)
	}
	for i := range resp.Builds {
		b, err := entity.Decode[app.Build](&resp.Builds[i])
		if err != nil {
			return nil, err
		}
		v.builds = append(v.builds, b)
	}
	return v, nil
}

// version returns the version that a build makes; nil if it was not started.
func (v *templateView) version(buildID string) *sandbox.TemplateVersion {
	i := slices.IndexFunc(v.versions, func(of *sandbox.TemplateVersion) bool {
		return of.Labels[labelBuild] == buildLabel(buildID) || buildUUID(of) == buildID
	})
	if i < 0 {
		return nil
	}
	return v.versions[i]
}

// started returns the version that a build makes, and the view of its template;
// nil if the build was not started.
func (c *caller) started(ctx context.Context, template, buildID string) (*templateView, *sandbox.TemplateVersion, error) {
	view, err := c.template(ctx, template)
	if errs.Is(err, errs.NotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return view, view.version(buildID), nil
}

// startBuild starts a build. A client that repeats the call gets the same answer.
func (s *Server) startBuild(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q buildStart
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	name, buildID := r.PathValue("id"), r.PathValue("build")
	if _, v, err := c.started(ctx, name, buildID); err != nil || v != nil {
		return http.StatusAccepted, nil, err
	}
	p, err := pendingOf(buildID)
	if err != nil {
		return 0, nil, err
	}
	b, err := q.translate(ctx, c)
	if err != nil {
		return 0, nil, err
	}
	req := &sandbox.BuildTemplateRequest{
		Project: c.project, Name: name, Labels: map[string]string{labelBuild: buildLabel(buildID)}, Tags: p.Tags,
		Steps: b.steps, User: b.user, Start: b.start, Ready: b.ready, NoCache: &b.anew,
		CPUMillis: positive(p.CPU), MemoryBytes: positive(p.Memory), DiskBytes: positive(p.Disk),
	}
	if err := req.Validate(); err != nil {
		return 0, nil, err // before its files are sent
	}
	if req.Source, err = s.uploads.send(ctx, c, b.files); err != nil {
		return 0, nil, err
	}
	_, err = c.templates.Build(ctx, req)
	return http.StatusAccepted, nil, err
}

func positive(n int64) *int64 {
	if n <= 0 {
		return nil
	}
	return &n
}

// buildEntry is a line of the log of a build.
type buildEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Message   string    `json:"message"`
	Level     string    `json:"level"`
	Step      string    `json:"step,omitempty"`
}

// buildReason says why a build failed.
type buildReason struct {
	Message string `json:"message"`
	Step    string `json:"step,omitempty"`
}

// buildInfo is the state of a build. Logs is what older clients had instead of
// LogEntries.
type buildInfo struct {
	TemplateID string       `json:"templateID"`
	BuildID    string       `json:"buildID"`
	Status     string       `json:"status"`
	Logs       []string     `json:"logs"`
	LogEntries []buildEntry `json:"logEntries"`
	Reason     *buildReason `json:"reason,omitempty"`
}

var buildStates = map[sandbox.TemplatePhase]string{
	sandbox.TemplatePhasePending: "ready", sandbox.TemplatePhaseReady: "ready", // a pending one is not built but fetched
	sandbox.TemplatePhaseBuilding: "building", sandbox.TemplatePhaseFailed: "error",
}

// maxEntries bounds the log entries of one answer, as E2B does.
const maxEntries = 100

// buildStatus returns the state of a build, and its log from an entry on: clients
// ask until there is none.
func (s *Server) buildStatus(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	name, buildID := r.PathValue("id"), r.PathValue("build")
	a := buildInfo{TemplateID: name, BuildID: buildID, Status: "waiting", Logs: []string{}, LogEntries: []buildEntry{}}
	view, v, err := c.started(ctx, name, buildID)
	if err != nil {
		return 0, nil, err
	}
	if v == nil {
		_, err := pendingOf(buildID)
		return http.StatusOK, a, err
	}
	a.Status = buildStates[v.Status.Phase]
	if v.Status.Phase == sandbox.TemplatePhaseFailed {
		a.Reason = &buildReason{Message: v.Status.Message}
	}
	offset, limit := 0, maxEntries
	for param, to := range map[string]*int{"logsOffset": &offset, "limit": &limit} {
		if text := r.URL.Query().Get(param); text != "" {
			if *to, err = strconv.Atoi(text); err != nil || *to < 0 {
				return 0, nil, errs.New(errs.InvalidArgument, "%s %q is no number of entries", param, text)
			}
		}
	}
	i := slices.IndexFunc(view.builds, func(b *app.Build) bool { return b.Spec.TemplateVersion == v.GetID() })
	if i >= 0 {
		a.LogEntries, err = c.buildLog(ctx, view.builds[i], offset, min(limit, maxEntries))
	}
	return http.StatusOK, a, err
}

// buildLog returns entries of the log of a build, without the offset first.
func (c *caller) buildLog(ctx context.Context, b *app.Build, offset, limit int) ([]buildEntry, error) {
	entries := []buildEntry{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the rest of the log is not read
	st, err := c.builds.Logs(ctx, &app.BuildLogsRequest{Build: b.GetID()})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	for len(entries) < limit {
		l, err := st.Recv()
		if err == io.EOF || errs.Is(err, errs.NotFound) && b.Status.Phase == app.BuildPhasePending { // it has no log yet
			break
		}
		if err != nil {
			return nil, err
		}
		e, ok := entryOf(&l.Event)
		switch {
		case !ok:
		case offset > 0:
			offset--
		default:
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// entryOf returns the entry for an event of a build; false if it has none.
func entryOf(e *app.BuildEvent) (buildEntry, bool) {
	entry := buildEntry{Timestamp: e.At, Level: "info", Message: strings.ToValidUTF8(e.Text, "\uFFFD")}
	if e.Step != nil {
		entry.Step = strconv.FormatInt(*e.Step, 10)
	}
	switch e.Kind {
	case "progress":
		return entry, false
	case "started", "done", "cached":
		if e.Internal != nil && *e.Internal || e.Name == "" {
			return entry, false
		}
		entry.Message = e.Kind + ": " + e.Name
	case "warning":
		entry.Level = "warn"
	case "failed", "canceled":
		entry.Level = "error"
	}
	return entry, entry.Message != ""
}
