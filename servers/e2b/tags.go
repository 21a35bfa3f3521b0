package e2b

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// templatePart serves what is below a template by GET. Patterns of the mux cannot
// tell the two apart.
func (s *Server) templatePart(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, part := r.PathValue("id"), r.PathValue("part")
	switch {
	case id == "aliases":
		return s.alias(ctx, c, part)
	case part == "tags":
		return s.tags(ctx, c, id)
	}
	return 0, nil, errs.New(errs.NotFound, "GET %s: there is no such call", r.URL.Path)
}

// alias answers whether a name is that of a template.
func (s *Server) alias(ctx context.Context, c *caller, name string) (int, any, error) {
	view, err := c.template(ctx, name)
	if err != nil {
		return 0, nil, err
	}
	own, err := c.projectID(ctx)
	return http.StatusOK, map[string]any{"templateID": view.template.Name, "public": view.template.Project != own}, err
}

// tagInfo describes a tag. The time at which it was set is not known: it is that
// of its version.
type tagInfo struct {
	Tag       string    `json:"tag"`
	BuildID   string    `json:"buildID"`
	CreatedAt time.Time `json:"createdAt"`
}

func (s *Server) tags(ctx context.Context, c *caller, name string) (int, any, error) {
	view, err := c.template(ctx, name)
	if err != nil {
		return 0, nil, err
	}
	tags := []tagInfo{}
	for tag, n := range view.template.Spec.Tags {
		for _, v := range view.versions {
			if v.Spec.Number == n {
				tags = append(tags, tagInfo{theirTag(tag), buildUUID(v), v.CreatedAt})
			}
		}
	}
	slices.SortFunc(tags, func(a, b tagInfo) int { return cmp.Compare(a.Tag, b.Tag) })
	return http.StatusOK, tags, nil
}

// setTags gives tags to the version that a name with a tag selects.
func (s *Server) setTags(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	name, tag, _ := strings.Cut(q.Target, ":")
	view, err := c.template(ctx, name+":"+ourTag(cmp.Or(tag, tagDefault)))
	if err != nil {
		return 0, nil, err
	}
	for _, t := range q.Tags {
		_, err := c.templates.Tag(ctx, &sandbox.TagTemplateRequest{Project: c.project, Template: name + ":" + ourTag(cmp.Or(tag, tagDefault)), Tag: ourTag(t)})
		if err != nil {
			return 0, nil, err
		}
	}
	return http.StatusCreated, map[string]any{"buildID": buildUUID(view.selected), "tags": q.Tags}, nil
}

func (s *Server) removeTags(ctx context.Context, c *caller, w http.ResponseWriter, r *http.Request) (int, any, error) {
	var q struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := decode(w, r, &q); err != nil {
		return 0, nil, err
	}
	yes := true
	for _, t := range q.Tags {
		_, err := c.templates.Tag(ctx, &sandbox.TagTemplateRequest{Project: c.project, Template: q.Name, Tag: ourTag(t), Remove: &yes})
		if err != nil {
			return 0, nil, err
		}
	}
	return http.StatusNoContent, nil, nil
}

// templateInfo describes a template in a list. E2B's counts of sandboxes are not
// kept: they are 0.
type templateInfo struct {
	TemplateID    string     `json:"templateID"`
	BuildID       string     `json:"buildID"`
	CPUCount      int64      `json:"cpuCount"`
	MemoryMB      int64      `json:"memoryMB"`
	DiskSizeMB    int64      `json:"diskSizeMB"`
	Public        bool       `json:"public"`
	Aliases       []string   `json:"aliases"`
	Names         []string   `json:"names"`
	CreatedAt     time.Time  `json:"createdAt"`
	UpdatedAt     time.Time  `json:"updatedAt"`
	CreatedBy     *string    `json:"createdBy"`
	LastSpawnedAt *time.Time `json:"lastSpawnedAt"`
	SpawnCount    int64      `json:"spawnCount"`
	BuildCount    int64      `json:"buildCount"`
	EnvdVersion   string     `json:"envdVersion"`
	BuildStatus   string     `json:"buildStatus"`
}

// listTemplates lists the templates of the project that have a version.
func (s *Server) listTemplates(ctx context.Context, c *caller, _ http.ResponseWriter, _ *http.Request) (int, any, error) {
	resp, err := c.templates.List(ctx, &sandbox.TemplatesRequest{Project: c.project})
	if err != nil {
		return 0, nil, err
	}
	own, err := c.projectID(ctx)
	if err != nil {
		return 0, nil, err
	}
	list := []templateInfo{}
	for i := range resp.Templates {
		if resp.Templates[i].Project != own {
			continue
		}
		t, err := entity.Decode[sandbox.Template](&resp.Templates[i])
		if err != nil {
			return 0, nil, err
		}
		view, err := c.template(ctx, t.Name)
		if errs.Is(err, errs.NotFound) { // deleted meanwhile
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		v := view.selected
		if v == nil && len(view.versions) > 0 {
			v = view.versions[0]
		}
		if v == nil {
			continue
		}
		res, names := v.Spec.Resources, append([]string{t.Name}, t.Spec.Aliases...)
		list = append(list, templateInfo{
			TemplateID: t.Name, BuildID: buildUUID(v), CPUCount: max(1, (res.CPUMillis+999)/1000), MemoryMB: res.MemoryBytes >> 20, DiskSizeMB: res.DiskBytes >> 20,
			Aliases: names, Names: names, CreatedAt: t.CreatedAt, UpdatedAt: v.CreatedAt, BuildCount: t.Status.Number, EnvdVersion: envdVersion, BuildStatus: buildStates[v.Status.Phase],
		})
	}
	return http.StatusOK, list, nil
}

// deleteTemplate deletes a template, or a snapshot, which E2B's clients do alike.
func (s *Server) deleteTemplate(ctx context.Context, c *caller, _ http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("id")
	snap, err := c.snapshotNamed(ctx, name)
	switch {
	case err != nil:
		return 0, nil, err
	case snap != "":
		return http.StatusNoContent, nil, c.sandboxes.DeleteSnapshot(ctx, &sandbox.DeleteSnapshotRequest{Snapshot: snap})
	}
	return http.StatusNoContent, nil, c.templates.Delete(ctx, &sandbox.TemplateRequest{Project: c.project, Template: templateName(name)})
}
