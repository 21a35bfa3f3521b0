package audit_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/audit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/wait"
)

// memory is a history that a test can make fail.
type memory struct {
	entity.History
	mu      sync.Mutex
	records []entity.HistoryRecord
	err     error
}

func (m *memory) Append(_ context.Context, records ...entity.HistoryRecord) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	for i := range records {
		if err := records[i].Validate(); err != nil {
			return err
		}
	}
	m.records = append(m.records, records...)
	return nil
}

func (m *memory) all() []entity.HistoryRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.records)
}

// deploys is a service whose calls do as the test says.
type deploys struct {
	app.Deploys
	upload func() error
	deploy func(ctx context.Context) error
}

func (d *deploys) Upload(_ context.Context, _ *app.UploadRequest, _ rpc.ServerStream[rpc.Bytes, app.UploadResult]) error {
	return d.upload()
}

func (d *deploys) Deploy(ctx context.Context, _ *app.DeployRequest) (*app.DeploymentResponse, error) {
	return &app.DeploymentResponse{}, d.deploy(ctx)
}

// serve returns a client of d whose calls are recorded in m.
func serve(t *testing.T, m *memory, d *deploys) (app.DeploysClient, *audit.Recorder) {
	t.Helper()
	projectOf := func(_ context.Context, tg rpc.Target) (string, error) { return tg.Project, nil }
	r := audit.NewRecorder(m, projectOf, slog.New(slog.DiscardHandler))
	srv, err := rpc.NewServer(rpc.ServerOptions{Auditor: r, ProjectOf: projectOf})
	if err != nil {
		t.Fatal(err)
	}
	app.RegisterDeploys(srv, d)
	cl := srv.Local(rpc.Identity{Name: "root", Roles: []string{rpc.RoleAdmin}, How: "socket"})
	t.Cleanup(func() { cl.Close(); srv.Close(); r.Wait() })
	return app.NewDeploysClient(cl), r
}

var lost = errs.New(errs.Unavailable, "the store does not answer")

// TestCallWithoutRecordIsNotAcknowledged: when the record cannot be written, the
// caller learns that the outcome is not known; a call that failed keeps its error.
func TestCallWithoutRecordIsNotAcknowledged(t *testing.T) {
	m := &memory{err: lost}
	d := &deploys{deploy: func(context.Context) error { return nil }}
	cl, _ := serve(t, m, d)
	_, err := cl.Deploy(t.Context(), &app.DeployRequest{App: "blog", Source: "s"})
	if !errs.Is(err, errs.Unavailable) || rpc.OutcomeOf(err) != rpc.Unknown || !strings.Contains(err.Error(), "could not be recorded") {
		t.Errorf("got %v (%s)", err, rpc.OutcomeOf(err))
	}
	d.deploy = func(context.Context) error { return errs.New(errs.Conflict, "another deployment is under way") }
	if _, err := cl.Deploy(t.Context(), &app.DeployRequest{App: "blog", Source: "s"}); !errs.Is(err, errs.Conflict) {
		t.Errorf("got %v", err)
	}
}

// TestRecordComesBeforeTheAnswer: although the caller has gone and its deadline
// has passed, and with the subjects that the handler found.
func TestRecordComesBeforeTheAnswer(t *testing.T) {
	m := &memory{}
	entered, proceed := make(chan struct{}), make(chan struct{})
	d := &deploys{deploy: func(ctx context.Context) error {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: "deployment", ID: "dep-1"})
		close(entered)
		<-proceed
		return nil
	}}
	cl, _ := serve(t, m, d)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := cl.Deploy(ctx, &app.DeployRequest{Project: "shop", App: "blog", Source: "s"})
		done <- err
	}()
	<-entered
	cancel()
	if err := <-done; !errs.Is(err, errs.Canceled) {
		t.Error(err)
	}
	if len(m.all()) > 0 {
		t.Error("recorded before its end")
	}
	close(proceed)
	wait.For(t, "the record", func() bool { return len(m.all()) == 1 })
	if r := m.all()[0]; r.Outcome != "ok" || r.SubjectID != "dep-1" || r.Project != "shop" {
		t.Errorf("%+v", r)
	}
}

// TestStreamsHaveTwoRecords: the first is there before the call ends.
func TestStreamsHaveTwoRecords(t *testing.T) {
	m := &memory{}
	d := &deploys{upload: func() error { return errs.New(errs.ResourceExhausted, "no room") }}
	cl, r := serve(t, m, d)
	upload := func() error {
		st, err := cl.Upload(t.Context(), &app.UploadRequest{Source: "s"})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		_, err = st.Recv()
		return err
	}
	if err := upload(); !errs.Is(err, errs.ResourceExhausted) {
		t.Fatal(err)
	}
	if all := m.all(); len(all) == 0 || all[0].Outcome != audit.OutcomeStarted {
		t.Fatalf("%+v", all)
	}
	r.Wait()
	if all := m.all(); len(all) != 2 || all[1].Outcome != "resource_exhausted" {
		t.Errorf("%+v", all)
	}
	d.upload = func() error { return nil }
	m.mu.Lock()
	m.err = lost
	m.mu.Unlock()
	if err := upload(); !errs.Is(err, errs.Unavailable) || rpc.OutcomeOf(err) != rpc.Unknown {
		t.Errorf("got %v (%s)", err, rpc.OutcomeOf(err))
	}
}

// TestHostileNamesFit: whatever a caller sends is made what a record can hold.
func TestHostileNamesFit(t *testing.T) {
	m := &memory{}
	long := strings.Repeat("ä\x00\xff<", 2000)
	d := &deploys{deploy: func(ctx context.Context) error {
		var s []rpc.Subject
		for range 1000 {
			s = append(s, rpc.Subject{Kind: long, ID: long, Op: long})
		}
		rpc.SetSubjects(ctx, s...)
		return nil
	}}
	cl, _ := serve(t, m, d)
	if _, err := cl.Deploy(t.Context(), &app.DeployRequest{App: "blog", Source: "s", Project: "a\x00b"}); err != nil {
		t.Fatal(err)
	}
	all := m.all()
	if len(all) != 1 {
		t.Fatalf("%d records", len(all))
	}
	var detail audit.Detail
	if err := json.Unmarshal(all[0].Detail, &detail); err != nil || len(detail.All)+detail.More != 1000 {
		t.Errorf("%d and %d more subjects, %v", len(detail.All), detail.More, err)
	}
}

// TestOmittedRefusalsAreCounted: a record after a flood says how many it left out.
func TestOmittedRefusalsAreCounted(t *testing.T) {
	m := &memory{}
	r := audit.NewRecorder(m, func(context.Context, rpc.Target) (string, error) { return "", nil }, slog.New(slog.DiscardHandler))
	denied := errs.New(errs.Unauthenticated, "no")
	nobody := &rpc.AuditCall{Method: rpc.MethodInfo{Full: "a/B"}}
	for range 1000 {
		r.Refused(nobody, denied)
	}
	r.Refused(&rpc.AuditCall{Method: rpc.MethodInfo{Full: "a/B"}, Identity: rpc.Identity{Name: "vera", How: "certificate"}}, denied)
	r.Wait()
	var omitted, records int64
	for _, rec := range m.all() {
		var d audit.Detail
		if err := json.Unmarshal(rec.Detail, &d); err != nil {
			t.Fatal(err)
		}
		records++
		omitted += d.Omitted
	}
	if records > 50 || records+omitted != 1001 {
		t.Errorf("%d records, %d omitted", records, omitted)
	}
}
