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
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
)

// rollout makes a deployment with a build that wait for the test to go on.
func (w *world) rollout(a *app.App) (*app.Deployment, *app.Build) {
	w.Helper()
	b := app.NewBuild()
	b.Spec.App, b.Spec.Source = a.GetID(), strings.Repeat("0", 64)
	w.create(b)
	d := app.NewDeployment()
	d.Spec.App, d.Spec.Kind, d.Spec.Build = a.GetID(), app.RolloutKindDeploy, b.GetID()
	w.create(d)
	return d, b
}

func (w *world) deployment(d *app.Deployment, p app.DeploymentPhase) {
	w.Helper()
	_, err := entity.ModifyStatus(w.Context(), w.store.Store, d.GetID(), func(d *app.Deployment) error {
		d.Status.Phase = p
		return nil
	})
	w.must(err)
}

func (w *world) build(b *app.Build, p app.BuildPhase) {
	w.Helper()
	_, err := entity.ModifyStatus(w.Context(), w.store.Store, b.GetID(), func(b *app.Build) error {
		b.Status.Phase = p
		return nil
	})
	w.must(err)
}

// events sorts what came: the phases, each once, and the lines of the build.
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
	w := newWorld(t)
	a, _ := w.app("shop")
	d, b := w.rollout(a)
	st, err := w.deploys.Follow(w.ctx(), &app.FollowRequest{Deployment: d.GetID()})
	w.must(err)
	first, err := st.Recv()
	if err != nil || first.Deployment == nil {
		t.Fatal(first, err)
	}
	w.deployment(d, app.DeploymentPhaseBuilding)
	w.build(b, app.BuildPhaseRunning)
	var want []string
	log := func(n int) {
		l, err := w.buildLogs.Start(string(b.ID))
		w.must(err)
		for range n {
			line := fmt.Sprint("step ", len(want))
			want = append(want, line)
			l.Add(buildkit.Event{Kind: buildkit.StepLog, At: time.Now(), Text: line})
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
	w.store.away.Store(true)
	w.deployment(d, app.DeploymentPhaseStarting)
	w.build(b, app.BuildPhaseSucceeded)
	w.deployment(d, app.DeploymentPhaseSucceeded)
	w.store.away.Store(false)
	rest, err := all(st)
	w.must(err)
	phases, lines := events(t, rest)
	if phases[len(phases)-1] != app.DeploymentPhaseSucceeded || len(lines) != 0 {
		t.Errorf("%v, %q", phases, lines)
	}
	// Who follows when all is over gets the whole, or what is after an offset.
	for _, offset := range []*int64{nil, ptr(int64(0))} {
		st, err = w.deploys.Follow(w.ctx(), &app.FollowRequest{Deployment: d.GetID(), BuildOffset: offset})
		w.must(err)
		rest, err = all(st)
		w.must(err)
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
	st, err = w.deploys.Follow(w.ctx(), &app.FollowRequest{Deployment: d.GetID(), BuildOffset: &offset})
	w.must(err)
	rest, err = all(st)
	w.must(err)
	if _, lines = events(t, rest); !slices.Equal(lines, want[290:]) {
		t.Errorf("after an offset: %q", lines)
	}
}

// However the end comes, whoever follows gets it.
func TestFollowNeverMissesTheEnd(t *testing.T) {
	w := newWorld(t)
	a, _ := w.app("shop")
	const n = 30
	type outcome struct {
		phase app.DeploymentPhase
		err   error
	}
	results := make(chan outcome, n)
	for i := range n {
		d := app.NewDeployment()
		d.Spec.App, d.Spec.Kind = a.GetID(), app.RolloutKindRestart
		w.create(d)
		go func() {
			st, err := w.deploys.Follow(w.ctx(), &app.FollowRequest{Deployment: d.GetID()})
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
			w.deployment(d, app.DeploymentPhaseStarting)
		}
		w.deployment(d, app.DeploymentPhaseCanceled)
	}
	for range n {
		if o := <-results; o.err != nil || o.phase != app.DeploymentPhaseCanceled {
			t.Errorf("%+v", o)
		}
	}
}

func TestFollowEnds(t *testing.T) {
	w := newWorld(t)
	a, _ := w.app("shop")
	d, _ := w.rollout(a)
	ctx, cancel := context.WithCancel(w.ctx())
	st, err := w.deploys.Follow(ctx, &app.FollowRequest{Deployment: d.GetID()})
	w.must(err)
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel() // and the handler returns: the server waits for it at the end
	_, err = all(st)
	w.class("canceled", err, errs.Canceled)
	st, err = w.deploys.Follow(w.ctx(), &app.FollowRequest{Deployment: d.GetID()})
	w.must(err)
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	w.must(w.apps.Delete(w.ctx(), &app.AppRequest{App: "shop"}))
	_, err = all(st)
	w.class("deleted", err, errs.NotFound)
}

func TestBuildLogs(t *testing.T) {
	w := newWorld(t)
	a, _ := w.app("shop")
	_, b := w.rollout(a)
	read := func(follow bool) ([]string, error) {
		st, err := w.builds.Logs(w.ctx(), &app.BuildLogsRequest{Build: b.GetID(), Follow: &follow})
		w.must(err)
		var lines []string
		list, err := all(st)
		for _, l := range list {
			lines = append(lines, l.Event.Text)
		}
		return lines, err
	}
	_, err := read(false)
	w.class("not begun", err, errs.NotFound)
	got := make(chan []string, 1)
	go func() {
		lines, err := read(true)
		if err != nil {
			t.Error(err)
		}
		got <- lines
	}()
	l, err := w.buildLogs.Start(string(b.ID))
	w.must(err)
	l.Add(buildkit.Event{Kind: buildkit.StepLog, Text: "one"})
	l.Finish()
	w.build(b, app.BuildPhaseSucceeded)
	if lines := <-got; joined(lines) != "one" {
		t.Errorf("%q", lines)
	}
	w.must(w.buildLogs.Delete(string(b.ID)))
	_, err = read(true)
	w.class("gone", err, errs.NotFound)
}

// A source is uploaded, and only what is whole is deployed.
func TestUpload(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"Dockerfile": "FROM scratch\n", "main.go": "package main\n", "copy.go": "package main\n"} {
		w.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	tree, err := source.Walk(t.Context(), dir, source.WalkOptions{})
	w.must(err)
	defer tree.Close()
	manifest, err := tree.Manifest.Encode()
	w.must(err)
	plan, err := w.deploys.PlanUpload(w.ctx(), &app.PlanUploadRequest{Manifest: manifest})
	w.must(err)
	if len(plan.Missing) != 2 {
		t.Fatalf("missing %v", plan.Missing)
	}
	deploy := &app.DeployRequest{App: "shop", Create: true, Source: plan.Source}
	_, err = w.deploys.Deploy(w.ctx(), deploy)
	w.class("incomplete", err, errs.FailedPrecondition)
	upload := func(digests ...string) (*app.UploadResult, error) {
		st, err := w.deploys.Upload(w.ctx(), &app.UploadRequest{Source: plan.Source})
		w.must(err)
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
	resp, err := w.deploys.Deploy(w.ctx(), deploy)
	w.must(err)
	d, err := entity.Decode[app.Deployment](resp.Deployment)
	w.must(err)
	if d.Spec.RequestedBy != "root" || d.Spec.Build == "" {
		t.Errorf("%+v", d.Spec)
	}
	_, err = w.deploys.Deploy(w.ctx(), deploy)
	w.class("another", err, errs.Conflict)
	if errs.Detail(err, "lease") != string(d.ID) {
		t.Errorf("lease %q", errs.Detail(err, "lease"))
	}
	// What is not a pack, or of another source, is refused.
	st, err := w.deploys.Upload(w.ctx(), &app.UploadRequest{Source: plan.Source})
	w.must(err)
	_, _ = st.Writer().Write(bytes.Repeat([]byte("no pack"), 100)) // it may be refused meanwhile
	_ = st.CloseSend()
	if _, err := st.Recv(); err == nil || errs.Is(err, errs.Internal) {
		t.Errorf("garbage: %v", err)
	}

	got, err := w.deploys.Cancel(w.ctx(), &app.DeploymentRequest{Deployment: d.GetID()})
	w.must(err)
	if d, err = entity.Decode[app.Deployment](got.Deployment); err != nil || !d.Spec.Cancel {
		t.Errorf("%+v, %v", d, err)
	}
	w.deployment(d, app.DeploymentPhaseShifting)
	_, err = w.deploys.Cancel(w.ctx(), &app.DeploymentRequest{Deployment: d.GetID()})
	w.class("shifting", err, errs.FailedPrecondition)
	w.deployment(d, app.DeploymentPhaseSucceeded)
	_, err = w.deploys.Cancel(w.ctx(), &app.DeploymentRequest{Deployment: d.GetID()})
	w.class("ended", err, errs.FailedPrecondition)
}

func TestUploadRefused(t *testing.T) {
	w := newWorld(t)
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
		_, err := w.deploys.PlanUpload(w.ctx(), &app.PlanUploadRequest{Manifest: tc.manifest})
		w.class(tc.name, err, tc.want)
	}
	for digest, want := range map[string]errs.Class{
		"": errs.InvalidArgument, "../../etc/passwd": errs.InvalidArgument, strings.Repeat("0", 64): errs.NotFound,
	} {
		_, err := w.deploys.Deploy(w.ctx(), &app.DeployRequest{App: "shop", Create: true, Source: digest})
		w.class("deploy "+digest, err, want)
		st, err := w.deploys.Upload(w.ctx(), &app.UploadRequest{Source: digest})
		w.must(err)
		_ = st.CloseSend() // it may have ended
		_, err = st.Recv()
		w.class("upload "+digest, err, want)
	}
	_, err := w.apps.Create(w.ctx(), &app.AppRequest{App: "Not A Name"})
	w.class("name", err, errs.InvalidArgument)
	st, err := w.deploys.Follow(w.ctx(), &app.FollowRequest{Deployment: id.NewDeployment()})
	w.must(err)
	_, err = st.Recv()
	w.class("follow", err, errs.NotFound)
}
