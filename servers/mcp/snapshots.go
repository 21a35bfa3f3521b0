package mcpserver

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

type snapshotInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Name    string `json:"name,omitempty" jsonschema:"name of the snapshot, unique in the project"`
}

type snapshotOutput struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"`
	Sandbox   string    `json:"sandbox,omitempty" jsonschema:"id of the sandbox of which it is"`
	State     string    `json:"state" jsonschema:"pending, ready or failed"`
	Bytes     int64     `json:"bytes"`
	CreatedAt time.Time `json:"created_at"`
}

func describeSnapshot(sn *sandbox.Snapshot) *snapshotOutput {
	return &snapshotOutput{string(sn.ID), sn.Name, string(sn.Spec.Sandbox), string(sn.Status.Phase), sn.Status.Bytes, sn.CreatedAt}
}

func (s *session) takeSnapshot(ctx context.Context, c *call, in *snapshotInput) (*snapshotOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.say("taking a snapshot of sandbox %s", sb.ID)
	resp, err := s.sandboxes.Snapshot(ctx, &sandbox.SnapshotRequest{Sandbox: sb.GetID(), Name: in.Name, Labels: map[string]string{label: s.name}})
	if err != nil {
		return nil, err
	}
	sn, err := entity.Decode[sandbox.Snapshot](&resp.Snapshot)
	if err != nil {
		return nil, err
	}
	return describeSnapshot(sn), nil
}

type snapshotsOutput struct {
	Snapshots []*snapshotOutput `json:"snapshots"`
	More      bool              `json:"more" jsonschema:"there are more than 200"`
}

func (s *session) listSnapshots(ctx context.Context, _ *call, _ *struct{}) (*snapshotsOutput, error) {
	project, err := s.projectID(ctx)
	if err != nil {
		return nil, err
	}
	all, _, err := entity.List[sandbox.Snapshot](ctx, s.store, entity.Query{Project: project})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *sandbox.Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	out := &snapshotsOutput{More: len(all) > maxListed, Snapshots: []*snapshotOutput{}}
	for _, sn := range all[:min(len(all), maxListed)] {
		out.Snapshots = append(out.Snapshots, describeSnapshot(sn))
	}
	return out, nil
}

type forkInput struct {
	Sandbox  string            `json:"sandbox,omitempty" jsonschema:"id or name of a running sandbox, which goes on"`
	Snapshot string            `json:"snapshot,omitempty" jsonschema:"id or name of a snapshot, instead of a sandbox"`
	Count    int64             `json:"count,omitempty" jsonschema:"number of new sandboxes; default 1"`
	Env      map[string]string `json:"env,omitempty" jsonschema:"environment variables of processes that are started in them"`
}

func (s *session) forkSandbox(ctx context.Context, c *call, in *forkInput) (*listOutput, error) {
	req := &sandbox.ForkRequest{Labels: map[string]string{label: s.name}, Env: in.Env, Count: new(cmp.Or(in.Count, 1)), IdleTimeout: &s.Idle, OnIdle: s.onIdle()}
	switch {
	case (in.Sandbox == "") == (in.Snapshot == ""):
		return nil, errs.New(errs.InvalidArgument, "give either sandbox or snapshot")
	case in.Sandbox != "":
		sb, err := s.find(ctx, in.Sandbox)
		if err != nil {
			return nil, err
		}
		req.Sandbox = sb.GetID()
	default:
		sn, err := s.findSnapshot(ctx, in.Snapshot)
		if err != nil {
			return nil, err
		}
		if err := s.permits(&sn.Spec.Template, "snapshot "+string(sn.ID)); err != nil {
			return nil, err
		}
		req.Snapshot = sn.GetID()
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	c.say("making %d sandboxes", *req.Count)
	resp, err := s.sandboxes.Fork(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &listOutput{Sandboxes: []*sandboxOutput{}}
	sids := make([]id.Sandbox, 0, len(resp.Sandboxes))
	for i := range resp.Sandboxes {
		sids = append(sids, id.Sandbox(resp.Sandboxes[i].ID))
	}
	if err := s.add(ctx, sids...); err != nil {
		return nil, err
	}
	for i := range resp.Sandboxes {
		sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandboxes[i])
		if err != nil {
			return nil, err
		}
		state, _, err := s.state(ctx, sb)
		if err != nil {
			return nil, err
		}
		out.Sandboxes = append(out.Sandboxes, s.describe(ctx, sb, state))
	}
	return out, nil
}

// findSnapshot returns a snapshot of the project by its id or name.
func (s *session) findSnapshot(ctx context.Context, name string) (*sandbox.Snapshot, error) {
	project, err := s.projectID(ctx)
	if err != nil {
		return nil, err
	}
	var sn *sandbox.Snapshot
	if strings.HasPrefix(name, sandbox.SnapshotKind.Prefix+"-") {
		sn, err = entity.Get[sandbox.Snapshot](ctx, s.store, schema.ID(name))
	}
	if sn == nil && (err == nil || errs.Is(err, errs.NotFound) || errs.Is(err, errs.InvalidArgument)) {
		sn, err = entity.ByName[sandbox.Snapshot](ctx, s.store, project, name)
	}
	if errs.Is(err, errs.NotFound) || err == nil && sn.Project != project {
		return nil, errs.New(errs.NotFound, "snapshot %q does not exist in project %s", name, s.Project).
			WithHint("list_snapshots lists the snapshots, snapshot_sandbox takes one")
	}
	return sn, err
}

type deleteSnapshotInput struct {
	Snapshot string `json:"snapshot" jsonschema:"id or name of the snapshot"`
}

type deletedOutput struct {
	Deleted string `json:"deleted" jsonschema:"id of what was deleted"`
}

func (s *session) deleteSnapshot(ctx context.Context, _ *call, in *deleteSnapshotInput) (*deletedOutput, error) {
	sn, err := s.findSnapshot(ctx, in.Snapshot)
	if err != nil {
		return nil, err
	}
	return &deletedOutput{string(sn.ID)}, s.sandboxes.DeleteSnapshot(ctx, &sandbox.DeleteSnapshotRequest{Snapshot: sn.GetID()})
}

func (s *session) pauseSandbox(ctx context.Context, c *call, in *sandboxInput) (*sandboxOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.say("pausing sandbox %s", sb.ID)
	resp, err := s.sandboxes.Pause(ctx, &sandbox.PauseRequest{Sandbox: sb.GetID(), Wait: new(true)})
	if err != nil {
		return nil, err
	}
	if sb, err = entity.Decode[sandbox.Sandbox](&resp.Sandbox); err != nil {
		return nil, err
	}
	return s.describe(ctx, sb, statePaused), nil
}

func (s *session) resumeSandbox(ctx context.Context, c *call, in *sandboxInput) (*sandboxOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.say("resuming sandbox %s", sb.ID)
	resp, err := s.sandboxes.Resume(ctx, &sandbox.PauseRequest{Sandbox: sb.GetID(), Wait: new(true)})
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
