package quotas

import (
	"context"
	"strconv"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Positions in a Use and in resources.
const (
	sandboxes = iota
	cpu
	memory
	disks
	executions
	snapshots
	count // of resources
)

// Use is what is used of each resource, in the order of resources.
type Use [count]int64

// resource is what a quota bounds.
type resource struct {
	name  core.QuotaResource
	noun  string // for messages
	limit func(*core.Quota) **int64
	show  func(int64) string
	free  string // what frees it, for hints
}

var resources = [count]resource{
	sandboxes:  {core.QuotaResourceSandboxes, "sandboxes", func(q *core.Quota) **int64 { return &q.Sandboxes }, number, "delete or pause sandboxes"},
	cpu:        {core.QuotaResourceCPUMillis, "CPUs", func(q *core.Quota) **int64 { return &q.CPUMillis }, schema.CellMillis, "ask for less CPU, or delete or pause sandboxes"},
	memory:     {core.QuotaResourceMemoryBytes, "memory", func(q *core.Quota) **int64 { return &q.MemoryBytes }, schema.CellBytes, "ask for less memory, or delete or pause sandboxes"},
	disks:      {core.QuotaResourceDiskBytes, "disk space", func(q *core.Quota) **int64 { return &q.DiskBytes }, schema.CellBytes, "ask for less, or delete sandboxes or disks"},
	executions: {core.QuotaResourceExecutions, "executions", func(q *core.Quota) **int64 { return &q.Executions }, number, "submit again when others have ended"},
	snapshots:  {core.QuotaResourceSnapshotBytes, "snapshots", func(q *core.Quota) **int64 { return &q.SnapshotBytes }, schema.CellBytes, "delete snapshots"},
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// demand returns what an entity uses.
func demand(o schema.Object) (u Use) {
	switch o := o.(type) {
	case *sandbox.Sandbox:
		if o.Spec.WarmPool != "" || o.Status.Phase.Ended() {
			return u
		}
		r := &o.Spec.Template.Resources
		u[disks] = r.DiskBytes
		if o.Status.Phase != sandbox.SandboxPhasePaused || o.Spec.Desired == sandbox.DesiredStateRunning {
			u[sandboxes], u[cpu], u[memory] = 1, r.CPUMillis, r.MemoryBytes
		}
	case *sandbox.Snapshot:
		switch o.Status.Phase {
		case sandbox.SnapshotPhaseReady:
			u[snapshots] = o.Status.Bytes
		case sandbox.SnapshotPhasePending:
			u[snapshots] = o.Spec.Template.Resources.MemoryBytes
		}
	case *disk.Disk:
		u[disks] = o.Spec.SizeBytes
	case *execution.Execution:
		if o.Status.Phase != execution.PhaseEnded {
			u[executions] = 1
		}
	}
	return u
}

// granted returns what an entity may use on and on without another admission. A
// sandbox that is being paused or stopped uses less at any moment.
func granted(o schema.Object) Use {
	sb, ok := o.(*sandbox.Sandbox)
	if ok && (sb.Spec.Desired == sandbox.DesiredStatePaused || sb.Spec.Desired == sandbox.DesiredStateStopped) && !sb.Status.Phase.Ended() {
		paused := *sb
		paused.Status.Phase = sandbox.SandboxPhasePaused
		return demand(&paused)
	}
	return demand(o)
}

// Indexes of the informers: of entities that use what quotas bound.
const (
	indexProject = "project of a quota"
	indexKey     = "API key of a quota"
)

// kind is a kind whose entities use what quotas bound.
type kind struct {
	decode func(*schema.Record) (schema.Object, error)
	get    func(schema.ID) schema.Object // nil: the informer has none
	add    func(u *Use, of Scope, except map[schema.ID]bool)
}

func kindOf[T any, P entity.ObjectPtr[T]](set *informer.Set) kind {
	i := informer.Of[T, P](set)
	i.AddIndex(indexProject, func(o P) []string {
		if demand(o) == (Use{}) {
			return nil
		}
		return []string{string(o.GetMeta().Project)}
	})
	i.AddIndex(indexKey, func(o P) []string {
		if demand(o) == (Use{}) || keyOf(o) == "" {
			return nil
		}
		return []string{string(keyOf(o))}
	})
	return kind{
		decode: func(r *schema.Record) (schema.Object, error) { return entity.Decode[T, P](r) },
		get: func(id schema.ID) schema.Object {
			if o := i.Get(id); o != nil {
				return o
			}
			return nil
		},
		add: func(u *Use, of Scope, except map[schema.ID]bool) {
			index, value := indexProject, string(of.Project)
			if of.Key != "" {
				index, value = indexKey, string(of.Key)
			}
			for _, o := range i.ByIndex(index, value) {
				if !except[o.GetMeta().ID] {
					u.add(demand(o))
				}
			}
		},
	}
}

func (u *Use) add(v Use) {
	for i := range u {
		u[i] += v[i]
	}
}

// sum returns what the entities of a scope use, except those with some ids.
func (s *Store) sum(of Scope, except map[schema.ID]bool) (u Use) {
	for _, k := range s.kinds {
		k.add(&u, of, except)
	}
	return u
}

// grows reports whether operations use more of a resource that a quota bounds.
// ResourceExhausted if they pass the bound.
func (s *Store) grows(ctx context.Context, p *core.Project, ops []entity.Op) (bool, error) {
	bounds, err := s.bounds(ctx, p, ops)
	if err != nil {
		return false, err
	}
	grows := false
	for i := range bounds {
		g, err := s.check(&bounds[i], ops)
		if err != nil {
			return false, err
		}
		grows = grows || g
	}
	return grows, nil
}

// check is grows for one quota.
func (s *Store) check(b *bound, ops []entity.Op) (bool, error) {
	var before, after Use // of the entities that the operations write
	written := map[schema.ID]bool{}
	for i := range ops {
		op := &ops[i]
		if !s.bounded(op) {
			continue
		}
		k := s.kinds[op.Record.Kind]
		o, err := k.decode(&op.Record)
		if err != nil {
			return false, err
		}
		written[op.Record.ID] = true
		if b.scope.has(o) {
			after.add(granted(o))
		}
		if old := k.get(op.Record.ID); old != nil && b.scope.has(old) {
			before.add(granted(old))
		}
	}
	grows := false
	for i := range resources {
		grows = grows || after[i] > before[i] && *resources[i].limit(b.quota) != nil
	}
	if !grows {
		return false, nil
	}
	used := s.sum(b.scope, written)
	used.add(before)
	for i := range resources {
		r, asked := &resources[i], after[i]-before[i]
		limit := *r.limit(b.quota)
		if limit == nil || asked <= 0 || used[i]+asked <= *limit {
			continue
		}
		return false, errs.New(errs.ResourceExhausted, "the quota of %s for %s: %s of %s in use, %s more asked for", b.owner, r.noun,
			r.show(used[i]), r.show(*limit), r.show(asked)).
			With(detailResource, string(r.name)).With("used", number(used[i])).With("limit", number(*limit)).With("asked", number(asked)).
			WithHint("%s; %s", r.free, b.hint)
	}
	return true, nil
}
