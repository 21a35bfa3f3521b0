package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/session"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/schema"
)

// Snapshot is the memory and the files of a session at one moment.
type Snapshot struct {
	ID        string            `json:"id" doc:"Id." example:"snap-4k2j7q"`
	Name      string            `json:"name,omitempty" doc:"Name."`
	Session   string            `json:"session,omitempty" doc:"The session of which it is; absent: that is deleted."`
	Parent    string            `json:"parent,omitempty" doc:"The snapshot from which that session was made."`
	State     string            `json:"state" enum:"pending,ready,failed" doc:"State."`
	Message   string            `json:"message,omitempty" doc:"Reason of a failure."`
	Image     string            `json:"image,omitempty" doc:"Image."`
	Bytes     int64             `json:"bytes" doc:"Space that it takes on the node's disk."`
	Store     string            `json:"store,omitempty" doc:"URL of the object store that has a copy; absent: there is none."`
	CopyBytes int64             `json:"copy_bytes,omitempty" doc:"Space that its copy takes in the store."`
	Labels    map[string]string `json:"labels,omitempty" doc:"Labels."`
	CreatedAt time.Time         `json:"created_at" doc:"Time of its creation."`
	ReadyAt   *time.Time        `json:"ready_at,omitempty" doc:"Time at which it was complete."`
}

func snapshotOf(s *sandbox.Snapshot) Snapshot {
	return Snapshot{
		ID: string(s.ID), Name: s.Name, Session: string(s.Spec.Sandbox), Parent: s.Spec.Parent, State: string(s.Status.Phase), Message: s.Status.Message,
		Image: s.Spec.Template.Image, Bytes: s.Status.Bytes, Store: s.Spec.Store, CopyBytes: s.Status.CopyBytes, Labels: session.VisibleLabels(s.Labels), CreatedAt: s.CreatedAt, ReadyAt: s.Status.ReadyAt,
	}
}

// SnapshotInput names a snapshot.
type SnapshotInput struct {
	ID string `path:"id" maxLength:"63" pattern:"^snap-[a-z0-9]+$" doc:"Id of the snapshot." example:"snap-4k2j7q"`
}

func registerSnapshots(a huma.API) {
	const tag = "snapshots"
	register(a, op(http.MethodPost, "/sessions/{id}/snapshots", "create-snapshot", tag, "Take a snapshot of a running session, which goes on", status(http.StatusCreated)), createSnapshot)
	register(a, op(http.MethodGet, "/snapshots", "list-snapshots", tag, "List the snapshots of the project"), listSnapshots)
	register(a, op(http.MethodGet, "/snapshots/{id}", "get-snapshot", tag, "Get a snapshot"), getSnapshot)
	register(a, op(http.MethodDelete, "/snapshots/{id}", "delete-snapshot", tag, "Delete a snapshot; sessions made from it go on", status(http.StatusNoContent)), deleteSnapshot)
	register(a, op(http.MethodPost, "/snapshots/{id}/forks", "fork-snapshot", tag, "Make sessions that go on from a snapshot", status(http.StatusCreated)), forkSnapshot)
	register(a, op(http.MethodPost, "/sessions/{id}/forks", "fork-session", tag, "Make sessions that go on from where another is, which goes on too", status(http.StatusCreated)), forkSession)
}

type createSnapshotInput struct {
	SessionInput
	Body struct {
		Name   string            `json:"name,omitempty" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name, unique among the project's snapshots."`
		Labels map[string]string `json:"labels,omitempty" doc:"Labels."`
		Store  string            `json:"store,omitempty" maxLength:"2048" doc:"URL of an object store for a copy, of which other nodes make sessions: one that the server permits (disks.stores); absent: its node alone has it." example:"s3://bucket/snapshots"`
	}
}

type createdSnapshot struct {
	Location string `header:"Location"`
	Body     Snapshot
}

func createSnapshot(ctx context.Context, in *createSnapshotInput) (*createdSnapshot, error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	resp, err := sandboxes(ctx).Snapshot(ctx, &sandbox.SnapshotRequest{Sandbox: sid, Name: in.Body.Name, Labels: in.Body.Labels, Store: in.Body.Store})
	if err != nil {
		return nil, err
	}
	s, err := entity.Decode[sandbox.Snapshot](&resp.Snapshot)
	if err != nil {
		return nil, err
	}
	return &createdSnapshot{Prefix + "/snapshots/" + string(s.ID), snapshotOf(s)}, nil
}

type listSnapshotsInput struct {
	Session string   `query:"session" maxLength:"63" pattern:"^sb-[a-z0-9]+$" doc:"Only snapshots of this session."`
	Name    string   `query:"name" maxLength:"63" doc:"Only the snapshot with this name."`
	Label   []string `query:"label,explode" maxItems:"16" doc:"Only snapshots with this label, KEY=VALUE; all of several."`
	Limit   int      `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Most snapshots of a page."`
	Cursor  string   `query:"cursor" maxLength:"1024" doc:"next_cursor of the page before."`
}

// SnapshotPage is a page of a list.
type SnapshotPage struct {
	Snapshots  []Snapshot `json:"snapshots" doc:"Snapshots, in the order of their ids."`
	NextCursor string     `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func listSnapshots(ctx context.Context, in *listSnapshotsInput) (*body[SnapshotPage], error) {
	labels, err := selectedLabels(in.Label)
	if err != nil {
		return nil, err
	}
	q := entity.Query{}
	if in.Session != "" {
		q = entity.Where(sandbox.SnapshotAttrSandbox, in.Session)
	}
	q.Kind, q.Name, q.Labels, q.Limit, q.Cursor = sandbox.KindSnapshot, in.Name, labels, in.Limit, in.Cursor
	page, err := remote.New(callerFrom(ctx).Client).List(ctx, q)
	if err != nil {
		return nil, err
	}
	all, err := decodeAll[sandbox.Snapshot](page.Records)
	if err != nil {
		return nil, err
	}
	out := SnapshotPage{Snapshots: []Snapshot{}, NextCursor: page.Cursor}
	for _, s := range all {
		out.Snapshots = append(out.Snapshots, snapshotOf(s))
	}
	return &body[SnapshotPage]{out}, nil
}

// decodeAll returns the entities of records.
func decodeAll[T any, P entity.ObjectPtr[T]](records []schema.Record) ([]P, error) {
	out := make([]P, 0, len(records))
	for i := range records {
		o, err := entity.Decode[T, P](&records[i])
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

func getSnapshot(ctx context.Context, in *SnapshotInput) (*body[Snapshot], error) {
	s, err := entity.Get[sandbox.Snapshot](ctx, remote.New(callerFrom(ctx).Client), in.ID)
	if err != nil {
		return nil, err
	}
	return &body[Snapshot]{snapshotOf(s)}, nil
}

func deleteSnapshot(ctx context.Context, in *SnapshotInput) (*struct{}, error) {
	return nil, sandboxes(ctx).DeleteSnapshot(ctx, &sandbox.DeleteSnapshotRequest{Snapshot: id.Snapshot(in.ID)})
}

// Fork describes sessions that go on from another or from a snapshot.
type Fork struct {
	Count      int64             `json:"count,omitempty" minimum:"1" maximum:"100" default:"1" doc:"Number of sessions."`
	Labels     map[string]string `json:"labels,omitempty" doc:"Labels of the sessions."`
	Env        map[string]string `json:"env,omitempty" doc:"Environment variables of processes that are started from then on."`
	TTLSeconds *int64            `json:"ttl_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"Each ends this long after its start; absent: never."`
}

func (f *Fork) request() *sandbox.ForkRequest {
	return &sandbox.ForkRequest{Count: &f.Count, Labels: f.Labels, Env: f.Env, TTL: seconds(f.TTLSeconds)}
}

type forkSessionInput struct {
	SessionInput
	Body Fork
}

type forkSnapshotInput struct {
	SnapshotInput
	Body Fork
}

// ForkResult has the sessions that a fork made.
type ForkResult struct {
	Sessions []Session `json:"sessions" doc:"The sessions, which run."`
}

func forkSession(ctx context.Context, in *forkSessionInput) (*body[ForkResult], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	req := in.Body.request()
	req.Sandbox = sid
	return fork(ctx, req)
}

func forkSnapshot(ctx context.Context, in *forkSnapshotInput) (*body[ForkResult], error) {
	req := in.Body.request()
	req.Snapshot = id.Snapshot(in.ID)
	return fork(ctx, req)
}

func fork(ctx context.Context, req *sandbox.ForkRequest) (*body[ForkResult], error) {
	resp, err := sandboxes(ctx).Fork(ctx, req)
	if err != nil {
		return nil, err
	}
	all, err := decodeAll[sandbox.Sandbox](resp.Sandboxes)
	if err != nil {
		return nil, err
	}
	out := ForkResult{Sessions: []Session{}}
	for _, sb := range all {
		out.Sessions = append(out.Sessions, session.Of(sb))
	}
	return &body[ForkResult]{out}, nil
}
