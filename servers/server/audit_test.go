package server

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/history"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/domain/audit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// records returns the audit records that q selects, newest first.
func (e *frontEnv) records(q entity.HistoryQuery) []entity.HistoryRecord {
	e.t.Helper()
	q.Stream = entity.StreamAudit
	page, err := e.c.store.Records(e.t.Context(), q)
	if err != nil {
		e.t.Fatal(err)
	}
	return page.Records
}

// unaudited are the methods that record nothing although their permission is not read.
var unaudited = []string{
	"app.Deploys/PlanUpload", "sandbox.Files/Attributes", "sandbox.Files/List", "sandbox.Files/Space", "sandbox.Files/Stat", "sandbox.Files/Watch", "sandbox.Previews/Dial", "sandbox.Sandboxes/CheckExec", "sandbox.Sandboxes/DialService", "server.Debug/Controllers", "store.Entities/KeepAlive",
}

// audited are the methods that record although every role permits them.
var audited = []string{"core.Keys/Exchange"}

// TestEveryMethodSaysWhetherItIsRecorded: each method that is called by an admin
// has a record exactly if its interface says so, and what is not recorded only
// reads.
func TestEveryMethodSaysWhetherItIsRecorded(t *testing.T) {
	eachStore(t, testEveryMethodSaysWhetherItIsRecorded)
}

func testEveryMethodSaysWhetherItIsRecorded(t *testing.T, e *frontEnv) {
	x := e.newTenant("shop")
	cl := e.holder(e.issue(e.root(), "boss", rpc.RoleAdmin))
	for _, m := range e.f.rpc.Methods() {
		reads := m.Permission == "read" && !slices.Contains(audited, m.Full) || m.Permission == rpc.Public || slices.Contains(unaudited, m.Full)
		if m.Audit == reads {
			t.Errorf("%s needs %q and is audited: %t", m.Full, m.Permission, m.Audit)
		}
		if m.Full == "server.Server/Status" || m.Full == "server.Server/Doctor" {
			continue // they look at the machine, which this test has not
		}
		var req any
		if a := answers[m.Full]; a.request != nil {
			req = a.request(x)
		}
		found := func() []entity.HistoryRecord {
			return e.records(entity.HistoryQuery{Actor: "boss", Action: m.Full})
		}
		err := attempt(t, cl, m, req, true)
		for range 20 { // a busy machine may not begin a call before it is given up
			if !m.Audit || !errs.Is(err, errs.DeadlineExceeded) || len(found()) > 0 {
				break
			}
			err = attempt(t, cl, m, req, true)
		}
		switch {
		case !m.Audit && len(found()) > 0:
			t.Errorf("%s was recorded", m.Full)
		case m.Audit && m.Stream == rpc.StreamNone:
			if recs := found(); len(recs) != 1 || recs[0].Outcome == audit.OutcomeStarted {
				t.Errorf("%s (%v): %+v", m.Full, err, recs)
			}
		case m.Audit:
			wait.For(t, "both records of "+m.Full, func() bool { return len(found()) == 2 })
			if recs := found(); recs[1].Outcome != audit.OutcomeStarted || recs[0].Outcome == audit.OutcomeStarted {
				t.Errorf("%s (%v): %+v", m.Full, err, recs)
			}
		}
	}
}

// TestRecordOfACall: a record says who did what from where, to what, and how it
// ended; a secret in the request is nowhere in it.
func TestRecordOfACall(t *testing.T) {
	e := newFrontEnv(t)
	x := e.newTenant("shop")
	cert := e.issue(e.root(), "carol", "deployer@shop")
	cl := e.holder(cert)
	const secret = "hunter2-do-not-tell"
	_, err := app.NewAppsClient(cl).SetEnv(t.Context(), &app.SetEnvRequest{
		Project: "shop", App: x.app.Name, Set: map[string]string{"A": secret}, SetSecret: map[string]string{"B": secret}, Message: secret,
	})
	if err != nil {
		t.Fatal(err)
	}
	sb := sandbox.NewSandboxesClient(cl)
	if _, err := sb.Stop(t.Context(), &sandbox.StopRequest{Sandbox: x.sandbox.GetID()}); err != nil {
		t.Fatal(err)
	}
	if err := app.NewAppsClient(cl).Delete(t.Context(), &app.AppRequest{Project: "shop", App: "nothing"}); !errs.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
	if err := sb.Delete(t.Context(), &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range e.records(entity.HistoryQuery{Actor: "carol"}) {
		got = append(got, fmt.Sprintf("%s %s %s/%s %s", r.Action, r.Project, r.SubjectKind, r.SubjectID, r.Outcome))
		var d audit.Detail
		if err := json.Unmarshal(r.Detail, &d); err != nil {
			t.Fatal(err)
		}
		if d.From != "certified" || !net.ParseIP(d.Address).IsLoopback() || d.Serial != cert.Serial {
			t.Errorf("%s: from %+v", r.Action, d)
		}
		if strings.Contains(fmt.Sprintf("%+v %s", r, r.Detail), secret) {
			t.Errorf("the secret is in the record of %s", r.Action)
		}
	}
	want := []string{
		"sandbox.Sandboxes/Delete shop sandbox/" + string(x.sandbox.ID) + " ok",
		"app.Apps/Delete shop app/nothing not_found",
		"sandbox.Sandboxes/Stop shop sandbox/" + string(x.sandbox.ID) + " ok",
		"app.Apps/SetEnv shop app/" + x.app.Name + " ok",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestTransactionNamesItsEntities: a transaction of entities names all of them, and
// what happens to each.
func TestTransactionNamesItsEntities(t *testing.T) {
	e := newFrontEnv(t)
	cl := store.NewEntitiesClient(e.root())
	var ops []store.Op
	for i := range 60 {
		p := core.NewProject()
		p.Name = fmt.Sprintf("p%d", i)
		p.ID = schema.NewID("proj")
		rec, err := p.EntityKind().Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, store.Op{Type: store.OpTypeCreate, Record: *rec})
	}
	if _, err := cl.Txn(t.Context(), &store.TxnRequest{RequestID: "once", Ops: ops}); err != nil {
		t.Fatal(err)
	}
	recs := e.records(entity.HistoryQuery{Action: "store.Entities/Txn"})
	if len(recs) != 1 || recs[0].SubjectID != string(ops[0].Record.ID) {
		t.Fatalf("%+v", recs)
	}
	var d audit.Detail
	if err := json.Unmarshal(recs[0].Detail, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.All) != 50 || d.More != 10 || d.All[1] != (rpc.Subject{Kind: "project", ID: string(ops[1].Record.ID), Op: "create"}) {
		t.Errorf("%+v", d)
	}
}

// TestRefusedCallsAreRecordedWithinBounds: one of a viewer's is, with the project
// that it was for; of many anonymous ones a burst is, and how many were not.
func TestRefusedCallsAreRecordedWithinBounds(t *testing.T) {
	e := newFrontEnv(t)
	x := e.newTenant("shop")
	e.newTenant("own")
	viewer := app.NewAppsClient(e.holder(e.issue(e.root(), "vera", "viewer@shop")))
	if err := viewer.Delete(t.Context(), &app.AppRequest{Project: "shop", App: x.app.Name}); !errs.Is(err, errs.PermissionDenied) {
		t.Fatal(err)
	}
	own := app.NewAppsClient(e.holder(e.issue(e.root(), "otto", "deployer@own")))
	if err := own.Delete(t.Context(), &app.AppRequest{Project: "shop", App: x.app.Name}); !errs.Is(err, errs.PermissionDenied) {
		t.Fatal(err)
	}
	nobody := app.NewAppsClient(e.dial(nil, nil))
	for range 500 {
		if err := nobody.Delete(t.Context(), &app.AppRequest{App: "x"}); !errs.Is(err, errs.Unauthenticated) {
			t.Fatal(err)
		}
	}
	e.f.audit.Wait()
	if recs := e.records(entity.HistoryQuery{Actor: "vera"}); len(recs) != 1 || recs[0].Outcome != "permission_denied" {
		t.Errorf("vera: %+v", recs)
	}
	if recs := e.records(entity.HistoryQuery{Actor: "otto", Projects: []string{"shop"}, SubjectKind: "app", SubjectID: x.app.Name}); len(recs) != 1 {
		t.Errorf("otto: %+v", recs)
	}
	recs := e.records(entity.HistoryQuery{Actor: "anonymous"})
	if len(recs) < 20 || len(recs) > 100 {
		t.Errorf("%d anonymous calls were recorded", len(recs))
	}
}

// TestHistoryShowsOwnProjectsOnly: roles of a project see its records, whatever
// they ask for; all records are for admins.
func TestHistoryShowsOwnProjectsOnly(t *testing.T) {
	e := newFrontEnv(t)
	root := e.root()
	for _, p := range []string{"mine", "second", "foreign"} {
		x := e.newTenant(p)
		if _, err := app.NewAppsClient(root).SetEnv(t.Context(), &app.SetEnvRequest{Project: p, App: x.app.Name, Set: map[string]string{"A": "1"}}); err != nil {
			t.Fatal(err)
		}
	}
	list := func(cl *rpc.Client, project string, limit int64) (projects []string, err error) {
		req := &history.ListRequest{Project: project}
		req.SetDefaults()
		for req.Limit = limit; ; {
			resp, err := history.NewHistoryClient(cl).List(t.Context(), req)
			if err != nil {
				return nil, err
			}
			for _, r := range resp.Records {
				if r.Action == "app.Apps/SetEnv" || r.Project == "" {
					projects = append(projects, r.Project)
				}
			}
			if req.Cursor = resp.Cursor; req.Cursor == "" {
				slices.Sort(projects)
				return slices.Compact(projects), nil
			}
		}
	}
	for _, c := range []struct {
		roles   []string
		project string
		want    []string
		class   errs.Class
	}{
		{[]string{"viewer@mine"}, "", []string{"mine"}, ""},
		{[]string{"viewer@mine"}, "mine", []string{"mine"}, ""},
		{[]string{"viewer@mine"}, "foreign", nil, errs.PermissionDenied},
		{[]string{"viewer@mine", "deployer@second"}, "", []string{"mine", "second"}, ""},
		{[]string{"admin@mine"}, "", []string{"mine"}, ""},
		{[]string{"viewer"}, "", nil, errs.PermissionDenied},
		{[]string{"viewer"}, "foreign", []string{"foreign"}, ""},
		{[]string{"admin"}, "", []string{"", "foreign", "mine", "second"}, ""},
	} {
		for _, limit := range []int64{1, 100} {
			got, err := list(e.holder(e.issue(root, "holder", c.roles...)), c.project, limit)
			if !slices.Equal(got, c.want) || err != nil && errs.ClassOf(err) != c.class || err == nil && c.class != "" {
				t.Errorf("%v, project %q: %q, %v", c.roles, c.project, got, err)
			}
		}
	}
}
