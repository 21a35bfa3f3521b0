package quotas_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// env is a store with the project default.
type env struct {
	testing.TB
	raw     entity.Store
	project schema.ID
}

func newEnv(t testing.TB) *env {
	t.Helper()
	e := &env{TB: t, raw: pgtest.Store(t, api.Kinds()...)}
	e.must(projects.Ensure(t.Context(), e.raw, projects.Default))
	var err error
	e.project, err = projects.Find(t.Context(), e.raw, "")
	e.must(err)
	return e
}

// server returns the store within quotas, as a server of its own has it. s is
// what it reaches the store by.
func (e *env) server(s entity.Store) *quotas.Store {
	e.Helper()
	set := informer.New(informer.Config{Reader: s})
	q := quotas.New(s, set)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = set.Run(ctx) })
	e.Cleanup(func() { cancel(); running.Wait() })
	e.must(set.WaitSynced(e.Context()))
	return q
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) refused(what string, err error, resource core.QuotaResource) {
	e.Helper()
	if !quotas.Refused(err) || !errs.Is(err, errs.ResourceExhausted) || errs.Detail(err, "quota") != string(resource) || errs.HintOf(err) == "" {
		e.Errorf("%s: %v, hint %q; want a refusal for %s", what, err, errs.HintOf(err), resource)
	}
}

func (e *env) set(q *quotas.Store, limits map[core.QuotaResource]int64) {
	e.Helper()
	var list []core.QuotaLimit
	for r, n := range limits {
		list = append(list, core.QuotaLimit{Resource: r, Limit: &n})
	}
	_, err := q.Set(e.Context(), "", list)
	e.must(err)
}

// used returns what is used of a resource.
func (e *env) used(q *quotas.Store, resource core.QuotaResource) int64 {
	e.Helper()
	resp, err := q.Show(e.Context(), "")
	e.must(err)
	for _, u := range resp.Resources {
		if u.Resource == resource {
			return u.Used
		}
	}
	e.Fatalf("%s is not shown", resource)
	return 0
}

// sandbox returns a sandbox of 1 CPU, 1 GiB of memory and 2 GiB of disk.
func (e *env) sandbox() *sandbox.Sandbox {
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Template.Image = e.project, "img"
	r := &sb.Spec.Template.Resources
	r.CPUMillis, r.MemoryBytes, r.DiskBytes = 1000, 1<<30, 2<<30
	return sb
}

func (e *env) phase(s entity.Store, sb *sandbox.Sandbox, phase sandbox.SandboxPhase) {
	e.Helper()
	got, err := entity.ModifyStatus(e.Context(), s, sb.GetID(), func(sb *sandbox.Sandbox) error { sb.Status.Phase = phase; return nil })
	e.must(err)
	*sb = *got
}

func TestEachResourceIsBounded(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	for resource, limit := range map[core.QuotaResource]int64{
		core.QuotaResourceSandboxes: 2, core.QuotaResourceCPUMillis: 2500, core.QuotaResourceMemoryBytes: 5 << 29, core.QuotaResourceDiskBytes: 5 << 30,
	} {
		t.Run(string(resource), func(t *testing.T) {
			e.set(q, map[core.QuotaResource]int64{resource: limit})
			a, b, c := e.sandbox(), e.sandbox(), e.sandbox()
			e.must(entity.Create(t.Context(), q, a))
			e.must(entity.Create(t.Context(), q, b))
			e.refused("a third sandbox", entity.Create(t.Context(), q, c), resource)
			if _, err := entity.Get[sandbox.Sandbox](t.Context(), e.raw, c.ID); !errs.Is(err, errs.NotFound) {
				t.Errorf("the refused sandbox: %v", err)
			}
			// What ends, or is deleted by another writer, is free at once.
			e.phase(e.raw, a, sandbox.SandboxPhaseStopped)
			e.must(entity.Create(t.Context(), q, c))
			e.must(entity.Remove[sandbox.Sandbox](t.Context(), e.raw, b.GetID()))
			d := e.sandbox()
			e.must(entity.Create(t.Context(), q, d))
			for _, sb := range []*sandbox.Sandbox{a, c, d} {
				e.must(entity.Remove[sandbox.Sandbox](t.Context(), e.raw, sb.GetID()))
			}
			_, err := q.Set(t.Context(), "", []core.QuotaLimit{{Resource: resource}})
			e.must(err)
		})
	}
	e.must(entity.Create(t.Context(), q, e.sandbox())) // unlimited again
}

func TestRefusalSaysWhatIsUsedAndAskedFor(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceMemoryBytes: 5 << 29})
	e.must(entity.Create(t.Context(), q, e.sandbox()))
	big := e.sandbox()
	big.Spec.Template.Resources.MemoryBytes = 2 << 30
	err := entity.Create(t.Context(), q, big)
	e.refused("memory", err, core.QuotaResourceMemoryBytes)
	for _, part := range []string{"default", "memory", "1 GiB of 2.5 GiB in use", "2 GiB more asked for"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
	if errs.Detail(err, "used") != fmt.Sprint(1<<30) || errs.Detail(err, "limit") != fmt.Sprint(5<<29) || errs.Detail(err, "asked") != fmt.Sprint(2<<30) {
		t.Errorf("details of %#v", err)
	}
}

func TestOtherProjectsHaveTheirOwnQuota(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	e.must(projects.Ensure(t.Context(), e.raw, "other"))
	other, err := projects.Find(t.Context(), e.raw, "other")
	e.must(err)
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 0})
	e.refused("no sandboxes", entity.Create(t.Context(), q, e.sandbox()), core.QuotaResourceSandboxes)
	sb := e.sandbox()
	sb.Project = other
	e.must(entity.Create(t.Context(), q, sb))
	if n := e.used(q, core.QuotaResourceSandboxes); n != 0 {
		t.Errorf("%d sandboxes of another project count", n)
	}
	if _, err := q.Show(t.Context(), "none"); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
	if _, err := q.Set(t.Context(), "", []core.QuotaLimit{{Resource: "fish"}}); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
}

// A project that was just made has its quota before the informer knows it.
func TestQuotaOfANewProject(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	limit := int64(1)
	e.must(projects.Ensure(t.Context(), e.raw, "new", func(p *core.Project) { p.Spec.Quota = &core.Quota{Sandboxes: &limit} }))
	pid, err := projects.Find(t.Context(), e.raw, "new")
	e.must(err)
	a, b := e.sandbox(), e.sandbox()
	a.Project, b.Project = pid, pid
	e.must(entity.Create(t.Context(), q, a))
	e.refused("a second one", entity.Create(t.Context(), q, b), core.QuotaResourceSandboxes)
}

func TestWarmSandboxCountsFromItsClaimOn(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	tpl := sandbox.NewTemplate()
	tpl.Project, tpl.Name = e.project, "python"
	e.must(entity.Create(t.Context(), e.raw, tpl))
	pool := sandbox.NewWarmPool()
	pool.Project, pool.Name, pool.Spec.Template = e.project, "python", tpl.GetID()
	e.must(entity.Create(t.Context(), e.raw, pool))
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 1})
	var warm []*sandbox.Sandbox
	for range 3 {
		sb := e.sandbox()
		sb.Spec.WarmPool = pool.GetID()
		e.must(entity.Create(t.Context(), q, sb))
		warm = append(warm, sb)
	}
	if n := e.used(q, core.QuotaResourceSandboxes); n != 0 {
		t.Errorf("%d warm sandboxes count", n)
	}
	for i, sb := range warm[:2] {
		sb.Spec.WarmPool = ""
		err := entity.UpdateSpec(t.Context(), q, sb)
		if i == 0 {
			e.must(err)
		} else {
			e.refused("a second claim", err, core.QuotaResourceSandboxes)
		}
	}
}

func TestPausedSandboxCountsItsDisk(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 1, core.QuotaResourceDiskBytes: 4 << 30})
	paused := e.sandbox()
	e.must(entity.Create(t.Context(), q, paused))
	paused.Spec.Desired = sandbox.DesiredStatePaused
	e.must(entity.UpdateSpec(t.Context(), q, paused))
	e.refused("one that is being paused counts", entity.Create(t.Context(), q, e.sandbox()), core.QuotaResourceSandboxes)
	e.phase(e.raw, paused, sandbox.SandboxPhasePaused)
	running := e.sandbox()
	e.must(entity.Create(t.Context(), q, running))
	paused.Spec.Desired = sandbox.DesiredStateRunning
	e.refused("a resume", entity.UpdateSpec(t.Context(), q, paused), core.QuotaResourceSandboxes)
	e.phase(e.raw, running, sandbox.SandboxPhaseStopped)
	e.must(entity.UpdateSpec(t.Context(), q, paused))
	if n := e.used(q, core.QuotaResourceSandboxes); n != 1 {
		t.Errorf("%d sandboxes in use", n)
	}
	e.phase(e.raw, paused, sandbox.SandboxPhaseRunning)
	paused.Spec.Desired = sandbox.DesiredStatePaused
	e.must(entity.UpdateSpec(t.Context(), q, paused))
	e.phase(e.raw, paused, sandbox.SandboxPhasePaused)
	e.must(entity.Create(t.Context(), q, e.sandbox()))
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 5})
	paused.Spec.Desired = sandbox.DesiredStateStopped // what uses less is never refused
	e.must(entity.UpdateSpec(t.Context(), q, paused))
	e.refused("the disk of the paused one counts", entity.Create(t.Context(), q, e.sandbox()), core.QuotaResourceDiskBytes)
}

// A sandbox that is being paused has no use of its own any more when it is
// resumed: in between another one may have been admitted in its place.
func TestResumeOfASandboxThatIsBeingPausedIsAdmitted(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 1})
	sb := e.sandbox()
	e.must(entity.Create(t.Context(), q, sb))
	sb.Spec.Desired = sandbox.DesiredStatePaused
	e.must(entity.UpdateSpec(t.Context(), q, sb))
	before, err := entity.Get[core.Project](t.Context(), e.raw, e.project)
	e.must(err)
	sb.Spec.Desired = sandbox.DesiredStateRunning
	e.must(entity.UpdateSpec(t.Context(), q, sb))
	after, err := entity.Get[core.Project](t.Context(), e.raw, e.project)
	e.must(err)
	if after.Status.Admissions != before.Status.Admissions+1 {
		t.Errorf("%d admissions after %d", after.Status.Admissions, before.Status.Admissions)
	}
}

func TestDisksAndSnapshotsAndExecutionsCount(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceDiskBytes: 3 << 30, core.QuotaResourceExecutions: 1, core.QuotaResourceSnapshotBytes: 1 << 30})
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = e.project, "data", 1<<30
	e.must(entity.Create(t.Context(), q, d))
	e.must(entity.Create(t.Context(), q, e.sandbox()))
	d.Spec.SizeBytes = 2 << 30
	e.refused("a larger disk", entity.UpdateSpec(t.Context(), q, d), core.QuotaResourceDiskBytes)
	d.Spec.SizeBytes, d.Spec.Deleted = 1<<30, true
	e.must(entity.UpdateSpec(t.Context(), q, d))

	x, y := newExecution(e.project), newExecution(e.project)
	e.must(entity.Create(t.Context(), q, x))
	e.refused("a second execution", entity.Create(t.Context(), q, y), core.QuotaResourceExecutions)
	x.Status.Phase = execution.PhaseEnded
	e.must(entity.UpdateStatus(t.Context(), q, x))
	e.must(entity.Create(t.Context(), q, y))

	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000, 1<<30
	e.must(entity.Create(t.Context(), e.raw, n))
	newSnapshot := func() *sandbox.Snapshot {
		s := sandbox.NewSnapshot()
		s.Project, s.Spec.Node, s.Spec.Template = e.project, n.GetID(), e.sandbox().Spec.Template
		return s
	}
	s := newSnapshot()
	e.must(entity.Create(t.Context(), q, s))
	e.refused("a second snapshot while one is taken", entity.Create(t.Context(), q, newSnapshot()), core.QuotaResourceSnapshotBytes)
	s.Status.Phase, s.Status.Bytes = sandbox.SnapshotPhaseReady, 100
	e.must(entity.UpdateStatus(t.Context(), q, s))
	if used := e.used(q, core.QuotaResourceSnapshotBytes); used != 100 {
		t.Errorf("%d bytes of snapshots", used)
	}
}

func newExecution(project schema.ID) *execution.Execution {
	x := execution.NewExecution()
	x.Project, x.Spec.Objects, x.Status.NotBefore = project, "o", time.Now()
	return x
}

// A quota that was lowered below the use keeps what runs, and changes that use
// no more.
func TestLoweredQuotaKeepsWhatRuns(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	var list []*sandbox.Sandbox
	for range 3 {
		sb := e.sandbox()
		e.must(entity.Create(t.Context(), q, sb))
		list = append(list, sb)
	}
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 1})
	ttl := time.Hour
	list[0].Spec.TTL = &ttl
	e.must(entity.UpdateSpec(t.Context(), q, list[0]))
	list[1].Spec.Desired = sandbox.DesiredStateStopped
	e.must(entity.UpdateSpec(t.Context(), q, list[1]))
	e.refused("one more", entity.Create(t.Context(), q, e.sandbox()), core.QuotaResourceSandboxes)
	if n := e.used(q, core.QuotaResourceSandboxes); n != 3 {
		t.Errorf("%d sandboxes in use", n)
	}
}

// A transaction is admitted as a whole: forks, batches, pools.
func TestTransactionIsAdmittedAsAWhole(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 3})
	ops := func(n int) (out []entity.Op) {
		for range n {
			op, err := entity.CreateOp(e.sandbox())
			e.must(err)
			out = append(out, op)
		}
		return out
	}
	_, err := q.Txn(t.Context(), entity.TxnRequest{Ops: ops(4)})
	e.refused("four", err, core.QuotaResourceSandboxes)
	e.refused("four, only checked", q.Check(t.Context(), ops(4)), core.QuotaResourceSandboxes)
	e.must(q.Check(t.Context(), ops(3)))
	three := ops(3)
	res, err := q.Txn(t.Context(), entity.TxnRequest{Ops: three})
	e.must(err)
	if len(res.Records) != 3 || res.Records[2].ID != three[2].Record.ID {
		t.Errorf("%d records", len(res.Records))
	}
}

// Requests at once, at two servers, never pass the bound, and use all of it.
func TestRequestsAtOnceKeepTheBound(t *testing.T) {
	e := newEnv(t)
	servers := []*quotas.Store{e.server(e.raw), e.server(e.raw)}
	const limit, requests = 5, 24
	e.set(servers[0], map[core.QuotaResource]int64{core.QuotaResourceSandboxes: limit})
	_, err := servers[1].Show(t.Context(), "") // it knows the quota
	e.must(err)
	start, err := e.raw.List(t.Context(), entity.Query{Kind: sandbox.KindSandbox, Limit: 1})
	e.must(err)
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			sb := e.sandbox()
			if err := entity.Create(t.Context(), servers[i%2], sb); err != nil {
				e.refused("a request", err, core.QuotaResourceSandboxes)
			} else if i%3 == 0 { // it ends, so that others follow
				e.phase(e.raw, sb, sandbox.SandboxPhaseStopped)
			}
		})
	}
	wg.Wait()
	live := e.mostLive(start.Token, limit)
	// What is left can be used.
	for range limit - live {
		e.must(entity.Create(t.Context(), servers[0], e.sandbox()))
	}
	for _, s := range servers {
		e.refused("one more", entity.Create(t.Context(), s, e.sandbox()), core.QuotaResourceSandboxes)
	}
}

// mostLive follows the sandboxes from a position to the present, and fails if more
// than limit lived at any revision. It returns how many live at the end.
func (e *env) mostLive(from schema.Token, limit int) int {
	e.Helper()
	end, err := e.raw.List(e.Context(), entity.Query{Kind: sandbox.KindSandbox, Limit: 1})
	e.must(err)
	w, err := e.raw.Watch(e.Context(), entity.WatchQuery{Kinds: []string{sandbox.KindSandbox}, From: from, Bookmarks: 10 * time.Millisecond})
	e.must(err)
	defer w.Close()
	live := map[schema.ID]bool{}
	for at := from.Revision; at < end.Token.Revision; {
		events, err := w.Next(e.Context())
		e.must(err)
		for i := range events {
			ev := &events[i]
			at = ev.Token.Revision
			if ev.Type != entity.EventPut {
				continue
			}
			sb, err := entity.Decode[sandbox.Sandbox](&ev.Record)
			e.must(err)
			if live[sb.ID] = true; sb.Status.Phase.Ended() {
				delete(live, sb.ID)
			}
			if len(live) > limit {
				e.Errorf("%d sandboxes live at revision %d, the limit is %d", len(live), at, limit)
			}
		}
	}
	return len(live)
}

// cut is a store that fails transactions, before or after they are applied.
type cut struct {
	entity.Store
	before, after atomic.Bool
}

func (c *cut) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	gone := errs.New(errs.Unavailable, "cut").With("outcome", "unknown")
	if c.before.Load() {
		return entity.TxnResult{}, gone
	}
	res, err := c.Store.Txn(ctx, req)
	if err == nil && c.after.Load() {
		return entity.TxnResult{}, gone
	}
	return res, err
}

// A server that dies before or after the write of an admission leaves neither
// use that does not exist, nor sandboxes that do not count.
func TestInterruptedAdmissionsCountWhatExists(t *testing.T) {
	e := newEnv(t)
	c := &cut{Store: e.raw}
	q := e.server(c)
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 2})
	c.before.Store(true)
	for range 3 {
		if err := entity.Create(t.Context(), q, e.sandbox()); !errs.Is(err, errs.Unavailable) {
			t.Fatal(err)
		}
	}
	c.before.Store(false)
	c.after.Store(true)
	if err := entity.Create(t.Context(), q, e.sandbox()); !errs.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
	c.after.Store(false)
	e.must(entity.Create(t.Context(), q, e.sandbox()))
	for _, s := range []*quotas.Store{q, e.server(e.raw)} { // the next server sees the same
		e.refused("a third one", entity.Create(t.Context(), s, e.sandbox()), core.QuotaResourceSandboxes)
		if n := e.used(s, core.QuotaResourceSandboxes); n != 2 {
			t.Errorf("%d sandboxes in use", n)
		}
	}
}

// BenchmarkCreate compares what a write costs without a quota, with one of another
// resource, and with one that bounds it while the project has many sandboxes.
func BenchmarkCreate(b *testing.B) {
	for _, c := range []struct {
		name   string
		direct bool
		limits map[core.QuotaResource]int64
	}{
		{"direct", true, nil},
		{"unlimited", false, nil},
		{"another-resource", false, map[core.QuotaResource]int64{core.QuotaResourceSnapshotBytes: 1}},
		{"limited", false, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 1 << 30, core.QuotaResourceMemoryBytes: 1 << 60}},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := newEnv(b)
			q := e.server(e.raw)
			e.set(q, c.limits)
			for range 200 {
				e.must(entity.Create(b.Context(), e.raw, e.sandbox()))
			}
			var s entity.Store = q
			if c.direct {
				s = e.raw
			}
			for b.Loop() {
				e.must(entity.Create(b.Context(), s, e.sandbox()))
			}
		})
	}
}
