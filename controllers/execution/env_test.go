package execution

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a store, object storage and a machine that outlive servers.
type env struct {
	*testing.T
	store   *pgstore.Store
	objects *objects
	project schema.ID
	node    id.Node
	result  string // that programs leave; set before the first server starts

	mu        sync.Mutex
	processes map[id.Sandbox]*process // those that run
	order     []string                // arguments of the programs, in the order of their starts
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, store: pgtest.Store(t, api.Kinds()...), objects: &objects{data: map[string][]byte{}}, processes: map[id.Sandbox]*process{}}
	if err := projects.Ensure(t.Context(), e.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	var err error
	if e.project, err = projects.Find(t.Context(), e.store, ""); err != nil {
		t.Fatal(err)
	}
	if err := projects.Ensure(t.Context(), e.store, templates.System); err != nil {
		t.Fatal(err)
	}
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "test", "amd64", 1000, 4<<30
	if err := entity.Create(t.Context(), e.store, n); err != nil {
		t.Fatal(err)
	}
	e.node = n.GetID()
	tpl, v := sandbox.NewTemplate(), sandbox.NewTemplateVersion()
	tpl.Project, tpl.Name = e.project, "python"
	if err := entity.Create(t.Context(), e.store, tpl); err != nil {
		t.Fatal(err)
	}
	v.Project, v.Spec.Template, v.Spec.Number, v.Spec.Base = e.project, tpl.GetID(), 1, "runtime/python"
	if err := entity.Create(t.Context(), e.store, v); err != nil {
		t.Fatal(err)
	}
	tpl.Status.Version, tpl.Status.Number = v.GetID(), 1
	if err := entity.UpdateStatus(t.Context(), e.store, tpl); err != nil {
		t.Fatal(err)
	}
	return e
}

// objects are executions.Objects in memory.
type objects struct {
	mu   sync.Mutex
	data map[string][]byte
	lost string // ending of the keys that cannot be read; "": all can
}

// lose makes keys with an ending unreadable, until the next call.
func (o *objects) lose(ending string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = ending
}

func (o *objects) Get(_ context.Context, key string) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost != "" && strings.HasSuffix(key, o.lost) {
		return nil, errs.New(errs.Unavailable, "the object store does not answer")
	}
	b, ok := o.data[key]
	if !ok {
		return nil, errs.New(errs.NotFound, "no object %s", key)
	}
	return b, nil
}

func (o *objects) Create(_ context.Context, key string, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.data[key]; ok {
		return errs.New(errs.AlreadyExists, "object %s exists", key)
	}
	o.data[key] = data
	return nil
}

func (o *objects) Delete(_ context.Context, key string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.data, key)
	return nil
}

func (o *objects) List(context.Context) iter.Seq2[executions.Object, error] { return nil }

// server is a running server.
type server struct {
	*env
	executions *executions.Service
	quotas     *quotas.Store
	stop       func() // as a restart does
}

// service returns the operations on executions, without a server.
func (e *env) service(st entity.Store, history entity.History, informers *informer.Set) *server {
	resolve := func(context.Context, string) (string, error) { return "image@sha256:1", nil }
	return &server{env: e, executions: executions.New(&executions.Service{
		Store: st, History: history, Informers: informers, Objects: e.objects, Sealer: schema.NewSealer(filepath.Join(e.TempDir(), "key")),
		Templates: templates.New(e.store, informers, resolve, slog.New(slog.DiscardHandler)), MaxQueued: 5000,
	})}
}

// start starts a server; m is nil, or the store of one that dies.
func (e *env) start(parallel int, m *mortal) *server {
	e.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var st entity.Store = e.store
	var history entity.History = e.store
	if m != nil {
		st, history = m, m
	}
	informers := informer.New(informer.Config{Reader: e.store})
	s := e.service(st, history, informers)
	s.quotas = quotas.New(e.store, informers)
	r := &Reconciler{
		Store: st, Executions: s.executions, Sandboxes: &machine{e, m, s.quotas}, Sealer: s.executions.Sealer, Node: e.node, Parallel: parallel, Linger: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(e.Output(), nil)),
	}
	c := r.Controller()
	r.Store = kittest.Hold(e, st, c)
	rt := kit.New(kit.Config{Informers: informers, StopGrace: time.Millisecond})
	if err := rt.Add(c); err != nil {
		e.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = informers.Run(ctx) })
	wg.Go(func() { _ = rt.Run(ctx) })
	wg.Go(func() { e.stopSandboxes(ctx, informers) })
	s.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	e.Cleanup(s.stop)
	return s
}

// stopSandboxes is what the nodes do: it ends sandboxes that are to stop or were
// deleted, with their processes.
func (e *env) stopSandboxes(ctx context.Context, informers *informer.Set) {
	remove := informer.Of[sandbox.Sandbox](informers).Handle(func(c informer.Change[*sandbox.Sandbox]) {
		if c.New == nil {
			e.end(c.Old.GetID())
			return
		}
		if sb := c.New; sb.Spec.Desired == sandbox.DesiredStateStopped && !sb.Status.Phase.Ended() {
			go func() {
				e.end(sb.GetID())
				_, _ = entity.ModifyStatus(ctx, e.store, sb.GetID(), func(sb *sandbox.Sandbox) error { // seen again if it fails
					sb.Status.Phase, sb.Status.Reason = sandbox.SandboxPhaseStopped, sandbox.EndReasonUser
					return nil
				})
			}()
		}
	})
	defer remove()
	<-ctx.Done()
}

// end ends the process of a sandbox, as SIGKILL does.
func (e *env) end(sid id.Sandbox) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.processes[sid]; p != nil {
		p.exit(137)
		delete(e.processes, sid)
	}
}

// machine is the Sandboxes of one server.
type machine struct {
	*env
	server *mortal       // nil: never dies
	quotas *quotas.Store // in which sandboxes are made
}

func (m *machine) dead() bool { return m.server != nil && m.server.alive() != nil }

// RunCode starts a process whose program says what it does: "exit N", "hang",
// "broken TEXT" (it cannot be started), and whose arguments it prints.
func (m *machine) RunCode(ctx context.Context, _ string, req sandboxes.RunCodeRequest) (id.Sandbox, sandboxes.Process, error) {
	return m.run(ctx, req.Execution, append([]string{string(req.Code)}, req.Args...))
}

// RunOnce starts the process of a command, which is a program as RunCode has it.
func (m *machine) RunOnce(ctx context.Context, _ string, req sandboxes.RunOnceRequest) (id.Sandbox, sandboxes.Process, error) {
	return m.run(ctx, req.Execution, req.Command)
}

func (m *machine) run(ctx context.Context, of id.Execution, command []string) (id.Sandbox, sandboxes.Process, error) {
	if m.dead() {
		return "", nil, errDead
	}
	if why, ok := strings.CutPrefix(command[0], "broken"); ok {
		return "", nil, errs.New(errs.ResourceExhausted, "no room%s", why)
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Execution, sb.Spec.Template.Image, sb.Spec.Node = m.project, of, "image", m.node
	sb.Status.Phase = sandbox.SandboxPhaseRunning
	if err := entity.Create(ctx, m.quotas, sb); err != nil {
		return "", nil, err
	}
	p := m.process(sb.GetID(), command)
	p.execution = of
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.processes {
		if o.execution == of {
			m.Errorf("%s runs twice at the same time", of)
		}
	}
	m.order = append(m.order, p.out)
	if !p.ended() {
		m.processes[p.sid] = p
	}
	return p.sid, p, nil
}

// Exec starts a process in a sandbox that stays. The shell that reads the result
// prints that of the machine.
func (m *machine) Exec(ctx context.Context, req sandboxes.ExecRequest) (id.Sandbox, sandboxes.Process, error) {
	if m.dead() {
		return "", nil, errDead
	}
	if _, err := entity.Get[sandbox.Sandbox](ctx, m.store, req.Sandbox); err != nil {
		return "", nil, err
	}
	command := req.Command
	if command[0] == "/bin/sh" {
		command = []string{"exit 0", m.result}
	}
	p := m.process(req.Sandbox, command)
	p.stays = true
	return p.sid, p, nil
}

// process returns the process of a command, which has ended if it is "exit N".
func (m *machine) process(sid id.Sandbox, command []string) *process {
	p := &process{m: m, sid: sid, done: make(chan struct{}), out: strings.Join(command[1:], " ")}
	var exit int
	if n, _ := fmt.Sscanf(command[0], "exit %d", &exit); n == 1 {
		p.exit(exit)
	}
	return p
}

func (m *machine) Stats(context.Context, id.Sandbox) (*sandbox.Stats, error) {
	return &sandbox.Stats{CPU: time.Second, MemoryBytes: 1 << 20}, nil
}

type process struct {
	m         *machine
	sid       id.Sandbox
	execution id.Execution
	out       string
	stays     bool // its sandbox outlives it
	once      sync.Once
	code      int
	reason    sandbox.EndReason
	done      chan struct{}
}

func (p *process) exit(code int) { p.once.Do(func() { p.code = code; close(p.done) }) }

func (p *process) Offsets() (stdout, stderr int64) { return 0, 0 }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

type discard struct{ io.Writer }

func (discard) Close() error { return nil }

// until is a stream that ends with the process.
type until struct{ p *process }

func (u until) Read([]byte) (int, error) { <-u.p.done; return 0, io.EOF }

func (p *process) Stdin() io.WriteCloser                        { return discard{io.Discard} }
func (p *process) Stdout() io.Reader                            { return io.MultiReader(strings.NewReader(p.out), until{p}) }
func (p *process) Stderr() io.Reader                            { return until{p} }
func (p *process) Reason() sandbox.EndReason                    { return p.reason }
func (p *process) Detach()                                      {}
func (p *process) ID() string                                   { return "1" }
func (p *process) PID() int                                     { return 1 }
func (p *process) Resize(context.Context, uint16, uint16) error { return nil }
func (p *process) Signal(context.Context, int) error            { p.m.end(p.sid); return nil }

func (p *process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.code, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Close ends the process and deletes its sandbox, unless the server is dead: then
// the streams of a process that goes on are lost.
func (p *process) Close() error {
	if p.m.dead() {
		p.once.Do(func() { close(p.done) })
		return nil
	}
	if p.stays {
		p.exit(137)
		return nil
	}
	p.m.end(p.sid)
	if err := entity.Remove[sandbox.Sandbox](context.Background(), p.m.store, p.sid); err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	return nil
}

func (s *server) submit(code string, change func(*execution.SubmitRequest)) *execution.Execution {
	s.Helper()
	req := &execution.SubmitRequest{Language: "python", Code: []byte(code), Retry: &execution.Retry{Attempts: 3}}
	if change != nil {
		change(req)
	}
	e, err := s.executions.Submit(s.Context(), req, executions.Submitter{Name: "tester"})
	if err != nil {
		s.Fatal(err)
	}
	return e
}

// wait waits until an execution has ended and is in the history.
func (s *server) wait(e *execution.Execution) *execution.Execution {
	s.Helper()
	var out *execution.Execution
	wait.NoError(s, "execution "+string(e.ID)+" is in the history", func() (err error) {
		if out, err = executions.Ended(s.Context(), s.store, e.GetID()); err != nil {
			return err
		}
		if _, err := entity.Get[execution.Execution](s.Context(), s.store, e.GetID()); !errs.Is(err, errs.NotFound) {
			return fmt.Errorf("it is in the store too: %v", err)
		}
		return nil
	})
	return out
}

func (s *server) phase(e *execution.Execution, want execution.Phase) {
	s.Helper()
	wait.For(s, "phase "+string(want), func() bool {
		e, err := entity.Get[execution.Execution](s.Context(), s.store, e.GetID())
		return err == nil && e.Status.Phase == want && (want != execution.PhaseRunning || e.Status.StartedAt != nil)
	})
}

// clean fails unless nothing of the ended executions is left but the history.
func (e *env) clean() {
	e.Helper()
	sbs, _, err := entity.List[sandbox.Sandbox](e.Context(), e.store, entity.Query{})
	if err != nil {
		e.Fatal(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(sbs) > 0 || len(e.processes) > 0 {
		e.Errorf("left: %d sandboxes, %d processes", len(sbs), len(e.processes))
	}
}
