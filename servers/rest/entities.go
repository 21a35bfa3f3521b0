package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	kinds "miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// EntityKind is a kind of entity.
type EntityKind struct {
	Name   string `json:"name" doc:"Name." example:"sandbox"`
	Plural string `json:"plural" doc:"Plural."`
	Scope  string `json:"scope" enum:"project,cluster" doc:"cluster: its entities belong to no project, and keys do not read them."`
	Doc    string `json:"doc" doc:"What it is."`
}

// KindList is the kinds of entities.
type KindList struct {
	Kinds []EntityKind `json:"kinds" doc:"Kinds by name."`
}

// Entity is an entity of the store: kind, id, name, spec, status and more.
// Secrets in it are not shown.
type Entity map[string]any

// EntityPage is a page of entities.
type EntityPage struct {
	Entities   []Entity `json:"entities" doc:"Entities, in the order of their ids."`
	NextCursor string   `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
	Position   string   `json:"position" doc:"Position of the list in the changes of the store: Last-Event-ID of the stream that follows it."`
}

// EntityChange is a change of an entity.
type EntityChange struct {
	Type   string `json:"type" enum:"put,delete" doc:"put: it was made or changed."`
	Entity Entity `json:"entity" doc:"The entity; the last one, if it was deleted."`
}

const eventChange = "change" // EntityChange

var entityEvents = map[string]any{eventChange: EntityChange{}, eventError: Problem{}}

func registerEntities(a huma.API) {
	const tag = "entities"
	register(a, op(http.MethodGet, "/kinds", "list-kinds", tag, "List the kinds of entities"), listKinds)
	register(a, op(http.MethodGet, "/entities", "list-entities", tag, "List the entities of a kind"), listEntities)
	register(a, op(http.MethodGet, "/entities/{kind}/{id}", "get-entity", tag, "Get an entity"), getEntity)
	register(a, op(http.MethodGet, "/entities/stream", "stream-entities", tag, "Follow the changes of entities, as server-sent events",
		answers(map[string]*huma.MediaType{eventStream: events(a, entityEvents)})), streamEntities)
}

func listKinds(context.Context, *struct{}) (*body[KindList], error) {
	out := KindList{Kinds: []EntityKind{}}
	for _, k := range kinds.Kinds() {
		scope := "project"
		if ofNoProject(k) {
			scope = "cluster"
		}
		out.Kinds = append(out.Kinds, EntityKind{k.Name, k.Plural, scope, k.Doc})
	}
	slices.SortFunc(out.Kinds, func(a, b EntityKind) int { return cmp.Compare(a.Name, b.Name) })
	return &body[KindList]{out}, nil
}

// entityOf returns a record for an answer.
func entityOf(r *schema.Record) (Entity, error) {
	k, err := kinds.Kind(r.Kind)
	if err != nil {
		return nil, err
	}
	o := k.New()
	if err := schema.DecodeRecord(r, o); err != nil {
		return nil, err
	}
	b, err := schema.EncodeObjectJSON(o)
	if err != nil {
		return nil, err
	}
	var e Entity
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, errs.New(errs.Internal, "%s %s: %w", r.Kind, r.ID, err)
	}
	return e, nil
}

type listEntitiesInput struct {
	Kind   string `query:"kind" required:"true" maxLength:"63" doc:"Kind." example:"sandbox"`
	Name   string `query:"name" maxLength:"63" doc:"Only the entity with this name."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"200" doc:"Most entities of a page. A page may have fewer although others follow."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"next_cursor of the page before."`
}

func listEntities(ctx context.Context, in *listEntitiesInput) (*body[EntityPage], error) {
	k, err := kinds.Kind(in.Kind)
	if err != nil {
		return nil, err
	}
	page, err := remote.New(callerFrom(ctx).Client).List(ctx, entity.Query{Kind: k.Name, Name: in.Name, Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	out := EntityPage{Entities: []Entity{}, NextCursor: page.Cursor, Position: positionOf(page.Token)}
	for i := range page.Records {
		e, err := entityOf(&page.Records[i])
		if err != nil {
			return nil, err
		}
		out.Entities = append(out.Entities, e)
	}
	return &body[EntityPage]{out}, nil
}

type entityInput struct {
	Kind string `path:"kind" maxLength:"63" doc:"Kind." example:"sandbox"`
	ID   string `path:"id" maxLength:"63" doc:"Id." example:"sb-4k2j7q"`
}

func getEntity(ctx context.Context, in *entityInput) (*body[Entity], error) {
	k, err := kinds.Kind(in.Kind)
	if err != nil {
		return nil, err
	}
	r, err := remote.New(callerFrom(ctx).Client).Get(ctx, k.Name, schema.ID(in.ID))
	if err != nil {
		return nil, err
	}
	e, err := entityOf(&r)
	return &body[Entity]{e}, err
}

// positionOf renders a position in the changes of the store.
func positionOf(t schema.Token) string {
	return t.Epoch + "." + strconv.FormatInt(int64(t.Revision), 10)
}

func parsePosition(s string) (schema.Token, error) {
	if s == "" {
		return schema.Token{}, nil
	}
	epoch, n, ok := strings.Cut(s, ".")
	rev, err := strconv.ParseInt(n, 10, 64)
	if !ok || err != nil {
		return schema.Token{}, errs.New(errs.InvalidArgument, "%q is no position of a stream of entities", s).
			WithHint("take position of a list, or the id of an event")
	}
	return schema.Token{Epoch: epoch, Revision: schema.Revision(rev)}, nil
}

type streamEntitiesInput struct {
	Kind        []string `query:"kind,explode" required:"true" minItems:"1" maxItems:"16" doc:"Kinds." example:"sandbox"`
	LastEventID string   `header:"Last-Event-ID" maxLength:"128" doc:"position of a list, or id of the last event of an earlier stream: the changes after it follow. Absent: those from now on. 410 if some of them are not kept any more."`
}

func streamEntities(ctx context.Context, in *streamEntitiesInput) (*huma.StreamResponse, error) {
	from, err := parsePosition(in.LastEventID)
	if err != nil {
		return nil, err
	}
	c := callerFrom(ctx)
	store := remote.New(c.Client)
	var names []string
	cluster := false // a kind belongs to no project
	for _, n := range in.Kind {
		k, err := kinds.Kind(n)
		if err != nil {
			return nil, err
		}
		// A watch of several kinds leaves out what its caller may not read: a list says it.
		if _, err := store.List(ctx, entity.Query{Kind: k.Name, Limit: 1}); err != nil {
			return nil, err
		}
		names = append(names, k.Name)
		cluster = cluster || ofNoProject(k)
	}
	project, err := projectID(ctx)
	if err != nil {
		return nil, err
	}
	q := entity.WatchQuery{Kinds: names, Project: project, From: from, Bookmarks: heartbeat}
	if cluster {
		q.Project = "" // such entities are not in it; shown leaves out those of other projects
	}
	w, err := store.Watch(ctx, q)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: streamed(func(sctx context.Context, emit func(event)) error {
		defer w.Close()
		for {
			batch, err := w.Next(sctx)
			if err != nil {
				if sctx.Err() != nil {
					return nil
				}
				return err
			}
			for i := range batch {
				if cluster && !shown(&batch[i].Record, project) {
					continue
				}
				if err := emitChange(&batch[i], emit); err != nil {
					return err
				}
			}
		}
	})}, nil
}

// ofNoProject reports whether the entities of a kind belong to no project. A project is itself one.
func ofNoProject(k *schema.Kind) bool {
	return k.Scope == schema.ScopeCluster && k.Name != core.KindProject
}

// shown reports whether the record of a change, or of a bookmark, belongs to a project or to none.
func shown(r *schema.Record, project schema.ID) bool {
	return r.Project == "" && r.Kind != core.KindProject || r.Project == project
}

func emitChange(e *entity.Event, emit func(event)) error {
	c := EntityChange{Type: "put"}
	switch e.Type {
	case entity.EventDelete:
		c.Type = "delete"
	case entity.EventPut:
	default:
		return nil
	}
	var err error
	if c.Entity, err = entityOf(&e.Record); err != nil {
		return err
	}
	emit(event{positionOf(e.Token), eventChange, c})
	return nil
}

// byName returns an entity of the caller's project by its name. NotFound if there is none. A caller whose
// roles hold in all projects does not get one of another project than that which its other calls change.
func byName[T any, P entity.ObjectPtr[T]](ctx context.Context, name string) (P, error) {
	project, err := projectID(ctx)
	if err != nil {
		return nil, err
	}
	return entity.ByName[T, P](ctx, remote.New(callerFrom(ctx).Client), project, name)
}

// projectID returns the id of the caller's project.
func projectID(ctx context.Context) (schema.ID, error) {
	c := callerFrom(ctx)
	p, err := entity.ByName[core.Project](ctx, remote.New(c.Client), "", c.Project())
	if err != nil {
		return "", err
	}
	return p.ID, nil
}
