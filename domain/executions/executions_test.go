package executions

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// objects are Objects in memory.
type objects struct {
	mu   sync.Mutex
	data map[string][]byte
}

func (o *objects) Get(_ context.Context, key string) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b, ok := o.data[key]; ok {
		return b, nil
	}
	return nil, errs.New(errs.NotFound, "no object %s", key)
}

func (o *objects) Create(_ context.Context, key string, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data[key] = data
	return nil
}

func (o *objects) Delete(context.Context, string) error { return nil }

func (o *objects) List(context.Context) iter.Seq2[Object, error] { return nil }

type fixture struct {
	*testing.T
	*Service
	store   *pgstore.Store
	objects *objects
}

// setup makes a service whose projects default and other have the template
// python.
func setup(t *testing.T) *fixture {
	t.Helper()
	store := pgtest.Store(t, api.Kinds()...)
	f := &fixture{T: t, store: store, objects: &objects{data: map[string][]byte{}}}
	informers := informer.New(informer.Config{Reader: store})
	resolve := func(context.Context, string) (string, error) { return "image@sha256:1", nil }
	f.Service = New(&Service{
		Store: store, History: store, Informers: informers, Objects: f.objects, Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key")),
		Templates: templates.New(store, informers, resolve, slog.New(slog.DiscardHandler)), MaxQueued: 20,
	})
	for _, name := range []string{projects.Default, "other", templates.System} {
		if err := projects.Ensure(t.Context(), store, name); err != nil {
			t.Fatal(err)
		}
	}
	system, err := projects.Find(t.Context(), store, templates.System)
	if err != nil {
		t.Fatal(err)
	}
	tpl, v := sandbox.NewTemplate(), sandbox.NewTemplateVersion()
	tpl.Project, tpl.Name = system, "python"
	f.must(entity.Create(t.Context(), store, tpl))
	v.Project, v.Spec.Template, v.Spec.Number, v.Spec.Base = system, tpl.GetID(), 1, "runtime/python"
	f.must(entity.Create(t.Context(), store, v))
	tpl.Status.Version, tpl.Status.Number = v.GetID(), 1
	f.must(entity.UpdateStatus(t.Context(), store, tpl))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = informers.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	f.must(informers.WaitSynced(t.Context()))
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func program(code string) *execution.SubmitRequest {
	return &execution.SubmitRequest{Language: "py", Code: []byte(code)}
}

func (f *fixture) submit(req *execution.SubmitRequest) *execution.Execution {
	f.Helper()
	e, err := f.Submit(f.Context(), req, Submitter{Name: "tester"})
	f.must(err)
	return e
}

// retire ends an execution and moves it to the history.
func (f *fixture) retire(eid id.Execution) {
	f.Helper()
	e, err := entity.ModifyStatus(f.Context(), f.store, eid, func(e *execution.Execution) error {
		now, code := time.Now(), int64(0)
		e.Status.Phase, e.Status.Outcome, e.Status.EndedAt, e.Status.ExitCode = execution.PhaseEnded, execution.OutcomeSucceeded, &now, &code
		return nil
	})
	f.must(err)
	for range 2 { // as a server that was killed in between
		f.must(Record(f.Context(), f.store, projects.Default, e))
	}
	f.must(entity.Delete(f.Context(), f.store, e))
}

func TestSubmitKeepsTheRequestAndSealsSecrets(t *testing.T) {
	f := setup(t)
	req := program("print(1)")
	req.Args, req.EnvSecret, req.Env = []string{"a", "b"}, map[string]string{"S": "hush"}, map[string]string{"A": "1"}
	e := f.submit(req)
	if e.Spec.Language != "python" || e.Spec.Template != "python" || e.Spec.Summary != "python main.py a b" || e.Spec.Timeout != execution.DefaultTimeout ||
		e.Spec.Actor != "tester" || e.Status.Phase != execution.PhaseQueued || e.Spec.Retry.Attempts != execution.DefaultAttempts {
		t.Errorf("%+v", e)
	}
	kept, err := ReadRequest(t.Context(), f.objects, e)
	if err != nil || string(kept.Code) != "print(1)" || kept.Env["A"] != "1" || kept.EnvSecret["S"] != "" {
		t.Errorf("%+v, %v", kept, err)
	}
	if v, err := f.Sealer.Open(e.Spec.Secrets["S"]); err != nil || v != "hush" {
		t.Errorf("secret %q, %v", v, err)
	}
	for _, b := range f.objects.data {
		if strings.Contains(string(b), "hush") {
			t.Error("an object has the secret")
		}
	}
	f.retire(e.GetID())
	page, err := f.store.Records(t.Context(), entity.HistoryQuery{Stream: entity.StreamExecution})
	if err != nil || len(page.Records) != 1 || strings.Contains(string(page.Records[0].Detail), "secrets") {
		t.Errorf("history %+v, %v", page.Records, err)
	}
}

func TestRequestsThatCannotRun(t *testing.T) {
	f := setup(t)
	box := sandbox.NewSandbox()
	other, err := projects.Find(t.Context(), f.store, "other")
	f.must(err)
	box.Project, box.Spec.Template.Image = other, "image"
	f.must(entity.Create(t.Context(), f.store, box))
	late := time.Now().Add(execution.MaxAhead + time.Hour)
	for name, c := range map[string]struct {
		change func(*execution.SubmitRequest)
		want   errs.Class
	}{
		"neither code nor command": {func(r *execution.SubmitRequest) { r.Code = nil }, errs.InvalidArgument},
		"both":                     {func(r *execution.SubmitRequest) { r.Command = []string{"true"} }, errs.InvalidArgument},
		"language":                 {func(r *execution.SubmitRequest) { r.Language = "cobol" }, errs.InvalidArgument},
		"template":                 {func(r *execution.SubmitRequest) { r.Template = "none" }, errs.NotFound},
		"image":                    {func(r *execution.SubmitRequest) { r.Image = "debian" }, errs.InvalidArgument},
		"place":                    {func(r *execution.SubmitRequest) { r.Language, r.Code, r.Command = "", nil, []string{"true"} }, errs.InvalidArgument},
		"sandbox of another":       {func(r *execution.SubmitRequest) { r.Sandbox = box.GetID() }, errs.NotFound},
		"sandbox and template":     {func(r *execution.SubmitRequest) { r.Sandbox, r.Template = box.GetID(), "python" }, errs.InvalidArgument},
		"file outside":             {func(r *execution.SubmitRequest) { r.Files = []execution.InputFile{{Path: "../x"}} }, errs.InvalidArgument},
		"variable":                 {func(r *execution.SubmitRequest) { r.Env = map[string]string{"A=B": "1"} }, errs.InvalidArgument},
		"secret":                   {func(r *execution.SubmitRequest) { r.EnvSecret = map[string]string{"A": "1\x00"} }, errs.InvalidArgument},
		"confined command": {func(r *execution.SubmitRequest) {
			r.Language, r.Code, r.Command, r.Template, r.Confine = "", nil, []string{"true"}, "python", new(true)
		}, errs.InvalidArgument},
		"workdir of an agent": {func(r *execution.SubmitRequest) { r.Agent, r.Workdir = "ada", "/" }, errs.InvalidArgument},
		"too late":            {func(r *execution.SubmitRequest) { r.NotBefore = &late }, errs.InvalidArgument},
		"too large":           {func(r *execution.SubmitRequest) { r.Stdin = make([]byte, execution.MaxInput) }, errs.InvalidArgument},
		"project":             {func(r *execution.SubmitRequest) { r.Project = "none" }, errs.NotFound},
	} {
		req := program("print(1)")
		c.change(req)
		if _, err := f.Submit(t.Context(), req, Submitter{}); !errs.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if len(f.objects.data) > 0 {
		t.Errorf("%d objects of refused requests", len(f.objects.data))
	}
	f.submit(program("print(1)"))
	wait.For(t, "the informer has it", func() bool { return f.inputBytes.Load() > 0 })
	f.MaxBytes = f.inputBytes.Load() + 10
	if _, err := f.Submit(t.Context(), program("print(1)"), Submitter{}); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("more bytes than are possible: %v", err)
	}
	f.MaxBytes = 0
	for range 19 {
		f.submit(program("print(1)"))
	}
	wait.NoError(t, "the queue is full", func() error {
		if _, err := f.Submit(t.Context(), program("print(1)"), Submitter{}); !errs.Is(err, errs.ResourceExhausted) {
			return errs.New(errs.Internal, "accepted: %w", err)
		}
		return nil
	})
}

// A key leads to its execution, in the store and in the history, also for
// submissions at the same time.
func TestIdempotencyKeys(t *testing.T) {
	f := setup(t)
	keyed := func(key, code string) *execution.SubmitRequest {
		r := program(code)
		r.Key = key
		return r
	}
	var found sync.Map
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			e, err := f.Submit(t.Context(), keyed("k", "1"), Submitter{})
			if err != nil {
				t.Error(err)
				return
			}
			found.Store(e.ID, true)
		})
	}
	wg.Wait()
	if n := len(maps.Collect(found.Range)); n != 1 {
		t.Fatalf("%d executions of one key", n)
	}
	e := f.submit(keyed("k", "1"))
	for _, where := range []string{"store", "history"} {
		if again := f.submit(keyed("k", "1")); again.ID != e.ID {
			t.Errorf("%s: another execution", where)
		}
		if _, err := f.Submit(t.Context(), keyed("k", "2"), Submitter{}); !errs.Is(err, errs.AlreadyExists) || errs.Detail(err, "execution") != string(e.ID) {
			t.Errorf("%s: another request: %v", where, err)
		}
		if where == "store" {
			f.retire(e.GetID())
		}
	}
	later := keyed("later", "1")
	later.NotBefore = new(time.Now().Add(time.Hour))
	first := f.submit(later)
	later.NotBefore = new(time.Now().Add(2 * time.Hour)) // as a caller that means "in an hour"
	if again := f.submit(later); first.ID != again.ID {
		t.Error("another time: another execution")
	}
	if o := f.submit(keyed("other", "1")); o.ID == e.ID {
		t.Error("another key leads to the same execution")
	}
	r := keyed("k", "1")
	r.Project = "other"
	if o := f.submit(r); o.ID == e.ID {
		t.Error("the key of another project leads to the same execution")
	}
}

func TestBatches(t *testing.T) {
	f := setup(t)
	req := &execution.SubmitBatchRequest{Key: "k", Executions: []execution.SubmitRequest{*program("1"), *program("2"), *program("3")}}
	batch, list, err := f.SubmitBatch(t.Context(), req, Submitter{})
	f.must(err)
	f.retire(list[1].GetID())
	again, repeated, err := f.SubmitBatch(t.Context(), req, Submitter{})
	if err != nil || again != batch || len(repeated) != 3 || repeated[2].ID != list[2].ID {
		t.Errorf("repeated: %s, %v", again, err)
	}
	members, cursor, err := f.List(t.Context(), "", ListQuery{Batch: batch, Limit: 100})
	f.must(err)
	if !slices.EqualFunc(members, list, func(a, b *execution.Execution) bool { return a.ID == b.ID }) || cursor != "" {
		t.Errorf("%d members", len(members))
	}
	for i := 1; i < len(list); i++ {
		if !list[i].Status.NotBefore.After(list[i-1].Status.NotBefore) {
			t.Error("the batch is not in its order")
		}
	}
	req.Executions = req.Executions[:2]
	if _, _, err := f.SubmitBatch(t.Context(), req, Submitter{}); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("the key with another batch: %v", err)
	}
	req.Key, req.Executions[1].Language = "", "cobol"
	before := len(f.objects.data)
	if _, _, err := f.SubmitBatch(t.Context(), req, Submitter{}); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), "execution 1") {
		t.Errorf("one that cannot run: %v", err)
	}
	if len(f.objects.data) != before {
		t.Error("a refused batch has left objects")
	}
	if _, _, err := f.List(t.Context(), "", ListQuery{Batch: "batch-none"}); !errs.Is(err, errs.NotFound) {
		t.Errorf("a batch that does not exist: %v", err)
	}
}

// Pages go through the store and then the history, and show each execution.
func TestListPages(t *testing.T) {
	f := setup(t)
	want := map[schema.ID]bool{}
	var all []*execution.Execution
	for range 7 {
		e := f.submit(program("1"))
		all = append(all, e)
		want[e.ID] = true
	}
	for _, e := range all[:4] {
		f.retire(e.GetID())
	}
	wait.For(t, "the informer has seen the moves", func() bool { return informer.Of[execution.Execution](f.Informers).Len() == 3 })
	for _, limit := range []int{1, 2, 3, 5, 100} {
		seen := map[schema.ID]bool{}
		var order []*execution.Execution
		q := ListQuery{Limit: limit}
		for {
			page, cursor, err := f.List(t.Context(), "", q)
			f.must(err)
			for _, e := range page {
				seen[e.ID] = true
				order = append(order, e)
			}
			if q.Cursor = cursor; cursor == "" {
				break
			}
		}
		if !maps.Equal(seen, want) || len(order) != 7 || order[0].ID != all[6].ID || order[3].ID != all[3].ID {
			t.Errorf("pages of %d: %d of 7, %d in all", limit, len(seen), len(order))
		}
	}
	if list, _, err := f.List(t.Context(), "other", ListQuery{Limit: 10}); err != nil || len(list) > 0 {
		t.Errorf("another project: %d, %v", len(list), err)
	}
	for _, where := range []int{0, 6} {
		if _, err := f.Get(t.Context(), "other", all[where].GetID()); !errs.Is(err, errs.NotFound) {
			t.Errorf("get of another project: %v", err)
		}
	}
}

// Wait returns the end although the execution moves to the history meanwhile.
func TestWaitUntilItMoved(t *testing.T) {
	f := setup(t)
	e := f.submit(program("1"))
	ended := make(chan *execution.Execution)
	go func() {
		got, err := f.Wait(t.Context(), "", e.GetID())
		if err != nil {
			t.Error(err)
		}
		ended <- got
	}()
	f.retire(e.GetID())
	if got := wait.Receive(t, "the end", ended); got == nil || got.Status.Outcome != execution.OutcomeSucceeded {
		t.Errorf("%+v", got)
	}
}

// Logs follow the output of an attempt, and of the one after it.
func TestLogsFollowAttempts(t *testing.T) {
	f := setup(t)
	e := f.submit(program("1"))
	begin := func(attempt int64) (*Live, func()) {
		live, done := f.Begin(e.GetID(), attempt)
		_, err := entity.ModifyStatus(t.Context(), f.store, e.GetID(), func(x *execution.Execution) error {
			x.Status.Phase, x.Status.Attempt = execution.PhaseRunning, attempt
			return nil
		})
		f.must(err)
		return live, done
	}
	live, done := begin(1)
	got := make(chan string, 100)
	end := make(chan error, 1)
	go func() {
		end <- f.Logs(t.Context(), "", e.GetID(), true, func(o *execution.Output) error {
			got <- string(o.Stdout) + string(o.Stderr) + o.Note
			return nil
		})
	}()
	say := func(l *Live, text string) {
		t.Helper()
		if _, err := l.Stdout().Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if out := wait.Receive(t, "output", got); out != text {
			t.Fatalf("%q, want %q", out, text)
		}
	}
	say(live, "one")
	say(live, "two")
	done()
	live, done = begin(2)
	if _, err := live.Stderr().Write([]byte("three")); err != nil {
		t.Fatal(err)
	}
	if a, b := wait.Receive(t, "a note", got), wait.Receive(t, "output", got); a != "another attempt follows" || b != "three" {
		t.Fatalf("%q, %q", a, b)
	}
	done()
	x, err := entity.Get[execution.Execution](t.Context(), f.store, e.GetID())
	f.must(err)
	out := live.Output()
	key, err := WriteOutput(t.Context(), f.objects, x, &out)
	f.must(err)
	_, err = entity.ModifyStatus(t.Context(), f.store, e.GetID(), func(x *execution.Execution) error {
		x.Status.Attempts = []execution.Attempt{
			{Number: 1, Outcome: execution.OutcomeInterrupted, EndedAt: time.Now()},
			{Number: 2, Outcome: execution.OutcomeSucceeded, EndedAt: time.Now(), Result: key},
		}
		return nil
	})
	f.must(err)
	f.retire(e.GetID())
	if err := wait.Receive(t, "the end of the logs", end); err != nil || len(got) > 0 {
		t.Errorf("%v, %d more messages", err, len(got))
	}
	for attempt, want := range []string{"three", "", "three"} { // 0 is the last one
		if _, out, err := f.Result(t.Context(), "", e.GetID(), int64(attempt)); err != nil || string(out.Stderr) != want {
			t.Errorf("result of attempt %d: %+v, %v", attempt, out, err)
		}
	}
	if _, _, err := f.Result(t.Context(), "", e.GetID(), 3); !errs.Is(err, errs.NotFound) {
		t.Errorf("an attempt that was not made: %v", err)
	}
	delete(f.objects.data, key)
	if _, _, err := f.Result(t.Context(), "", e.GetID(), 2); !errs.Is(err, errs.NotFound) || errs.HintOf(err) == "" {
		t.Errorf("output that was deleted: %v", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	f := setup(t)
	l, done := f.Begin("execution-1", 1)
	defer done()
	for range 3 {
		if n, err := l.Stdout().Write(make([]byte, execution.MaxOutput/2+1)); n != execution.MaxOutput/2+1 || err != nil {
			t.Fatal(n, err)
		}
	}
	l.SetResult(make([]byte, execution.MaxOutput+1))
	if out := l.Output(); len(out.Stdout) != execution.MaxOutput || !out.StdoutTruncated || out.StderrTruncated || len(out.Result) != execution.MaxOutput || !out.ResultTruncated {
		t.Errorf("%d bytes, truncated %t; result %d", len(out.Stdout), out.StdoutTruncated, len(out.Result))
	}
}
