package rpcserver_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
)

// rollout creates a deployment whose build waits for the test.
func (e *env) rollout(a *app.App) (*app.Deployment, *app.Build) {
	e.Helper()
	b := app.NewBuild()
	b.Spec.App, b.Spec.Source = a.GetID(), strings.Repeat("0", 64)
	e.create(b)
	d := app.NewDeployment()
	d.Spec.App, d.Spec.Kind, d.Spec.Build = a.GetID(), app.RolloutKindDeploy, b.GetID()
	e.create(d)
	return d, b
}

func (e *env) deployment(d *app.Deployment, p app.DeploymentPhase) {
	e.Helper()
	_, err := entity.ModifyStatus(e.Context(), e.store.Store, d.GetID(), func(d *app.Deployment) error {
		d.Status.Phase = p
		return nil
	})
	e.must(err)
}

func (e *env) build(b *app.Build, p app.BuildPhase) {
	e.Helper()
	_, err := entity.ModifyStatus(e.Context(), e.store.Store, b.GetID(), func(b *app.Build) error {
		b.Status.Phase = p
		return nil
	})
	e.must(err)
}

// events sorts the received events: the phases, each once, and the lines of the build.
func events(t *testing.T, list []*app.DeployEvent) (phases []app.DeploymentPhase, lines []string) {
	t.Helper()
	for _, e := range list {
		if e.Build != nil {
			lines = append(lines, e.Build.Text)
			continue
		}
		d, err := entity.Decode[app.Deployment](e.Deployment)
		if err != nil {
			t.Fatal(err)
		}
		phases = append(phases, d.Status.Phase)
	}
	return slices.Compact(phases), lines
}

func TestFollow(t *testing.T) {
	e := newEnv(t)
	a, _ := e.app("shop")
	d, b := e.rollout(a)
	st, err := e.deploys.Follow(e.ctx(), &app.FollowRequest{Deployment: d.GetID()})
	e.must(err)
	first, err := st.Recv()
	if err != nil || first.Deployment == nil {
		t.Fatal(first, err)
	}
	e.deployment(d, app.DeploymentPhaseBuilding)
	e.build(b, app.BuildPhaseRunning)
	var want []string
	log := func(n int) {
		l, err := e.buildLogs.Start(string(b.ID))
		e.must(err)
		for range n {
			line := fmt.Sprint("step ", len(want))
			want = append(want, line)
			l.Add(buildlog.Event{Kind: buildlog.StepLog, At: time.Now(), Text: line})
		}
		l.Finish()
	}
	log(300)
	for range 300 {
		e, err := st.Recv()
		for err == nil && e.Build == nil {
			e, err = st.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// The store goes away for a moment, and with it every watch.
	e.store.away.Store(true)
	e.deployment(d, app.DeploymentPhaseStarting)
	e.build(b, app.BuildPhaseSucceeded)
	e.deployment(d, app.DeploymentPhaseSucceeded)
	e.store.away.Store(false)
	rest, err := all(st)
	e.must(err)
	phases, lines := events(t, rest)
	if phases[len(phases)-1] != app.DeploymentPhaseSucceeded || len(lines) != 0 {
		t.Errorf("%v, %q", phases, lines)
	}
	// A follower that starts after the end gets every event, or those after an
	// offset.
	for _, offset := range []*int64{nil, ptr(int64(0))} {
		st, err = e.deploys.Follow(e.ctx(), &app.FollowRequest{Deployment: d.GetID(), BuildOffset: offset})
		e.must(err)
		rest, err = all(st)
		e.must(err)
		if phases, lines = events(t, rest); !slices.Equal(phases, []app.DeploymentPhase{app.DeploymentPhaseSucceeded}) || !slices.Equal(lines, want) {
			t.Errorf("%v, %d lines", phases, len(lines))
		}
	}
	var offset int64
	for _, e := range rest {
		if e.Build != nil && e.Build.Text == "step 289" {
			offset = *e.BuildOffset
		}
	}
	st, err = e.deploys.Follow(e.ctx(), &app.FollowRequest{Deployment: d.GetID(), BuildOffset: &offset})
	e.must(err)
	rest, err = all(st)
	e.must(err)
	if _, lines = events(t, rest); !slices.Equal(lines, want[290:]) {
		t.Errorf("after an offset: %q", lines)
	}
}

// However the build ends, every follower gets the end.
func TestFollowNeverMissesTheEnd(t *testing.T) {
	e := newEnv(t)
	a, _ := e.app("shop")
	const n = 30
	type outcome struct {
		phase app.DeploymentPhase
		err   error
	}
	results := make(chan outcome, n)
	for i := range n {
		d := app.NewDeployment()
		d.Spec.App, d.Spec.Kind = a.GetID(), app.RolloutKindRestart
		e.create(d)
		go func() {
			st, err := e.deploys.Follow(e.ctx(), &app.FollowRequest{Deployment: d.GetID()})
			if err != nil {
				results <- outcome{err: err}
				return
			}
			list, err := all(st)
			o := outcome{err: err}
			if len(list) > 0 {
				if last, derr := entity.Decode[app.Deployment](list[len(list)-1].Deployment); derr == nil {
					o.phase = last.Status.Phase
				}
			}
			results <- o
		}()
		if i%2 == 0 {
			e.deployment(d, app.DeploymentPhaseStarting)
		}
		e.deployment(d, app.DeploymentPhaseCanceled)
	}
	for range n {
		if o := <-results; o.err != nil || o.phase != app.DeploymentPhaseCanceled {
			t.Errorf("%+v", o)
		}
	}
}

func TestFollowEnds(t *testing.T) {
	e := newEnv(t)
	a, _ := e.app("shop")
	d, _ := e.rollout(a)
	ctx, cancel := context.WithCancel(e.ctx())
	st, err := e.deploys.Follow(ctx, &app.FollowRequest{Deployment: d.GetID()})
	e.must(err)
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel() // and the handler returns: the server waits for it at the end
	_, err = all(st)
	e.class("canceled", err, errs.Canceled)
	st, err = e.deploys.Follow(e.ctx(), &app.FollowRequest{Deployment: d.GetID()})
	e.must(err)
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	e.must(e.apps.Delete(e.ctx(), &app.AppRequest{App: "shop"}))
	_, err = all(st)
	e.class("deleted", err, errs.NotFound)
}

func TestBuildLogs(t *testing.T) {
	e := newEnv(t)
	a, _ := e.app("shop")
	_, b := e.rollout(a)
	read := func(follow bool) ([]string, error) {
		st, err := e.builds.Logs(e.ctx(), &app.BuildLogsRequest{Build: b.GetID(), Follow: &follow})
		e.must(err)
		var lines []string
		list, err := all(st)
		for _, l := range list {
			lines = append(lines, l.Event.Text)
		}
		return lines, err
	}
	_, err := read(false)
	e.class("not begun", err, errs.NotFound)
	got := make(chan []string, 1)
	go func() {
		lines, err := read(true)
		if err != nil {
			t.Error(err)
		}
		got <- lines
	}()
	l, err := e.buildLogs.Start(string(b.ID))
	e.must(err)
	l.Add(buildlog.Event{Kind: buildlog.StepLog, Text: "one"})
	l.Finish()
	e.build(b, app.BuildPhaseSucceeded)
	if lines := <-got; joined(lines) != "one" {
		t.Errorf("%q", lines)
	}
	e.must(e.buildLogs.Delete(string(b.ID)))
	_, err = read(true)
	e.class("gone", err, errs.NotFound)
}

// A source is uploaded, and only a complete source is deployed.
func TestUpload(t *testing.T) {
	e := newEnv(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"Dockerfile": "FROM scratch\n", "main.go": "package main\n", "copy.go": "package main\n"} {
		e.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	tree, err := source.Walk(t.Context(), dir, source.WalkOptions{})
	e.must(err)
	defer tree.Close()
	manifest, err := tree.Manifest.Encode()
	e.must(err)
	plan, err := e.deploys.PlanUpload(e.ctx(), &app.PlanUploadRequest{Manifest: manifest})
	e.must(err)
	if len(plan.Missing) != 2 {
		t.Fatalf("missing %v", plan.Missing)
	}
	deploy := &app.DeployRequest{App: "shop", Create: true, Source: plan.Source}
	_, err = e.deploys.Deploy(e.ctx(), deploy)
	e.class("incomplete", err, errs.FailedPrecondition)
	upload := func(digests ...string) (*app.UploadResult, error) {
		st, err := e.deploys.Upload(e.ctx(), &app.UploadRequest{Source: plan.Source})
		e.must(err)
		defer st.Close()
		var list []source.Digest
		for _, d := range digests {
			list = append(list, source.Digest(d))
		}
		if err := tree.WritePack(t.Context(), st.Writer(), list, nil); err != nil {
			return nil, err
		}
		if err := st.CloseSend(); err != nil {
			return nil, err
		}
		return st.Recv()
	}
	for _, d := range plan.Missing {
		if res, err := upload(d); err != nil || res.Contents != 1 {
			t.Fatal(res, err)
		}
	}
	resp, err := e.deploys.Deploy(e.ctx(), deploy)
	e.must(err)
	d, err := entity.Decode[app.Deployment](resp.Deployment)
	e.must(err)
	if d.Spec.RequestedBy != "root" || d.Spec.Build == "" {
		t.Errorf("%+v", d.Spec)
	}
	_, err = e.deploys.Deploy(e.ctx(), deploy)
	e.class("another", err, errs.Conflict)
	if errs.Detail(err, "lease") != string(d.ID) {
		t.Errorf("lease %q", errs.Detail(err, "lease"))
	}
	// Bytes that are no pack, or a pack of another source, are refused.
	st, err := e.deploys.Upload(e.ctx(), &app.UploadRequest{Source: plan.Source})
	e.must(err)
	_, _ = st.Writer().Write(bytes.Repeat([]byte("no pack"), 100)) // the server may have refused it meanwhile
	_ = st.CloseSend()
	if _, err := st.Recv(); err == nil || errs.Is(err, errs.Internal) {
		t.Errorf("garbage: %v", err)
	}

	got, err := e.deploys.Cancel(e.ctx(), &app.DeploymentRequest{Deployment: d.GetID()})
	e.must(err)
	if d, err = entity.Decode[app.Deployment](got.Deployment); err != nil || !d.Spec.Cancel {
		t.Errorf("%+v, %v", d, err)
	}
	e.deployment(d, app.DeploymentPhaseShifting)
	_, err = e.deploys.Cancel(e.ctx(), &app.DeploymentRequest{Deployment: d.GetID()})
	e.class("shifting", err, errs.FailedPrecondition)
	e.deployment(d, app.DeploymentPhaseSucceeded)
	_, err = e.deploys.Cancel(e.ctx(), &app.DeploymentRequest{Deployment: d.GetID()})
	e.class("ended", err, errs.FailedPrecondition)
}

func TestUploadRefused(t *testing.T) {
	e := newEnv(t)
	for _, tc := range []struct {
		name     string
		manifest []byte
		want     errs.Class
	}{
		{"nothing", nil, errs.InvalidArgument},
		{"garbage", []byte("\x00\xff{"), errs.InvalidArgument},
		{"escapes", []byte(`{"files":[{"path":"../x","mode":"file","size":1,"digest":"` + strings.Repeat("0", 64) + `"}]}`), errs.InvalidArgument},
		{"huge", bytes.Repeat([]byte{' '}, 20<<20), errs.ResourceExhausted},
	} {
		_, err := e.deploys.PlanUpload(e.ctx(), &app.PlanUploadRequest{Manifest: tc.manifest})
		e.class(tc.name, err, tc.want)
	}
	for digest, want := range map[string]errs.Class{
		"": errs.InvalidArgument, "../../etc/passwd": errs.InvalidArgument, strings.Repeat("0", 64): errs.NotFound,
	} {
		_, err := e.deploys.Deploy(e.ctx(), &app.DeployRequest{App: "shop", Create: true, Source: digest})
		e.class("deploy "+digest, err, want)
		st, err := e.deploys.Upload(e.ctx(), &app.UploadRequest{Source: digest})
		e.must(err)
		_ = st.CloseSend() // the call may have ended
		_, err = st.Recv()
		e.class("upload "+digest, err, want)
	}
	_, err := e.apps.Create(e.ctx(), &app.AppRequest{App: "Not A Name"})
	e.class("name", err, errs.InvalidArgument)
	st, err := e.deploys.Follow(e.ctx(), &app.FollowRequest{Deployment: id.NewDeployment()})
	e.must(err)
	_, err = st.Recv()
	e.class("follow", err, errs.NotFound)
}
