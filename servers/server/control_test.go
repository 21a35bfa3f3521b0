package server

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/schema"
)

// newTestControl is the control plane of a server without a machine and a
// store, with its real controllers.
func newTestControl(t *testing.T) *control {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt-control-") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	in, err := instance.Open(dir+"/state", dir+"/run")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	cfg := &config.Config{StateDir: in.StateDir}
	c := newControl(cfg, &machine{cfg: cfg, in: in, logger: log}, nil, sources{}, nil, log)
	if err := c.addControllers("node-test"); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestFieldsHaveOneWriter: no two controllers of the server own the same field.
// A controller that writes another's field is an exception, and listed here on
// purpose: before adding one, look for a way to have a single writer.
func TestFieldsHaveOneWriter(t *testing.T) {
	c := newTestControl(t)
	var got []string
	for _, w := range c.rt.Graph() {
		for _, s := range w.Shares {
			got = append(got, fmt.Sprintf("%s writes %s of %s %s", w.Name, s.Field, s.Owner, s.Why))
		}
	}
	slices.Sort(got)
	want := []string{
		"addon writes app.spec.env of api to give an attached app the variables of its addon",
		"addon writes app.spec.secrets of api to give an attached app the variables of its addon",
		"addon writes app.status.active_deployment of deployment to accept a deployment, together with its lease",
		"addon writes disk.spec.deleted of api to delete those of an addon that is deleted",
		"addon writes disk_snapshot.spec.deleted of api to delete the backups of an addon that is deleted",
		"api writes app.status.active_deployment of deployment to accept a deployment, together with its lease",
		"api writes app.status.serving of deployment when a user ends a preview",
		"api writes app.status.traffic of deployment when a user ends a preview",
		"api writes sandbox_pool.spec.autoscale of deployment to scale a service of the version that serves",
		"api writes sandbox_pool.spec.autoscaled of autoscale to scale a service of the version that serves",
		"api writes sandbox_pool.spec.replicas of deployment to scale a service of the version that serves",
		"api writes sandbox_pool.spec.state of deployment when a user ends a preview",
		"app-preview writes app.status.serving of deployment when the time of a preview is over",
		"app-preview writes app.status.traffic of deployment when the time of a preview is over",
		"app-preview writes sandbox_pool.spec.state of deployment when the time of a preview is over",
		"certificate-order writes certificate.spec of api to renew a certificate that it ordered",
		"deployment writes app.spec.env of api when a rollback brings back that of its version",
		"deployment writes app.spec.secrets of api when a rollback brings back that of its version",
		"deployment writes disk.spec.snapshot_every of api as app.toml of the app that writes to it declares",
		"deployment writes disk.spec.snapshot_keep of api as app.toml of the app that writes to it declares",
		"deployment writes disk.spec.snapshot_keep_for of api as app.toml of the app that writes to it declares",
		"deployment writes disk.spec.snapshot_schedule of api as app.toml of the app that writes to it declares",
		"deployment writes disk.spec.snapshot_since of api as app.toml of the app that writes to it declares",
		"deployment writes disk.spec.snapshot_time_zone of api as app.toml of the app that writes to it declares",
		"deployment writes route.spec.service of api as app.toml of its app states",
		"deployment writes route.spec.settings of api as app.toml of its app states",
		"deployment writes route.spec.source_settings of api as app.toml of its app states",
		"deployment writes sandbox.spec.desired of api to stop the release command of a version that will not serve",
		"deployment writes sandbox.spec.stop_reason of api to stop the release command of a version that will not serve",
		"deployment writes sandbox_pool.spec.autoscaled of autoscale when a number that was fixed begins to follow the load",
		"disk-copy writes disk_snapshot.spec.deleted of api to delete one that was taken for a copy",
		"disk-schedule writes disk.spec.snapshot_counted_to of api to count a time together with its snapshot",
		"disk-schedule writes disk_copy.spec.deleted of api to delete an old one that it has made",
		"disk-schedule writes disk_snapshot.spec.deleted of api to delete an old one that it has taken",
		"execution writes sandbox.spec.desired of api to stop the sandbox of an attempt whose server was killed",
		"execution writes sandbox.spec.stop_reason of api to stop the sandbox of an attempt whose server was killed",
		"node writes node.status.down_since of registrar once its lease has lapsed and it is down",
		"node writes node.status.message of registrar once its lease has lapsed and it is down",
		"node writes node.status.phase of registrar once its lease has lapsed and it is down",
		"node writes sandbox.status of sandbox to end it when its node stays down",
		"pool writes sandbox.labels.runtime/counted of api to count the failure of an ended one of its own once",
		"pool writes sandbox.spec.desired of api to stop one of its own that is too many",
		"pool writes sandbox.spec.desired of api to suspend one of its own while the app sleeps",
		"pool writes sandbox.spec.stop_reason of api to stop one of its own that is too many",
		"retention writes app.status.active_deployment of deployment to clear it when that deployment was deleted",
		"retention writes sandbox_pool.spec.state of deployment to retire what a rollout left behind",
		"sandbox writes sandbox.spec.desired of api to pause an idle one or one whose time is over, and to go on with one that cannot be paused",
		"sandbox writes sandbox.spec.ttl of api to pause one whose time is over, or to give it time if it cannot be paused",
		"scheduler writes sandbox.status of sandbox while it has no node, and so no controller of one",
		"task-run writes sandbox.spec.desired of api to stop the run of a task that was cancelled",
		"task-run writes sandbox.spec.stop_reason of api to stop the run of a task that was cancelled",
		"task-schedule writes task_run.spec.cancel of api to replace a run by the next one",
		"template writes template.spec.tags of api to select the version that was built",
		"template writes template.status.version of api to select the version that was built",
		"template writes template_version.status of api to record how its build ended",
		"warm-pool writes sandbox.labels.runtime/counted of api to count the failure of an ended one of its own once",
		"warm-pool writes sandbox.spec.desired of api to stop one of its own that is too many",
		"warm-pool writes sandbox.spec.stop_reason of api to stop one of its own that is too many",
		"webhook writes webhook.spec.disabled of api its receiver answered that it is gone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("exceptions:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestADoubleWriterIsFound: no writer may declare a field of another owner, a
// part of that field, or a field that contains it.
func TestADoubleWriterIsFound(t *testing.T) {
	writers := newTestControl(t).rt.Graph()
	for _, w := range writers {
		for _, f := range w.Owns {
			root, _, _ := strings.Cut(f.Path, ".")
			paths := []string{f.Path, root}
			for _, a := range f.Kind.Attrs {
				if f.Covers(kit.Field{Kind: f.Kind, Path: a.Path}) {
					paths = append(paths, a.Path)
				}
			}
			for _, p := range kit.Fields(f.Kind, paths...) {
				rt := kit.New(kit.Config{})
				for _, x := range writers {
					rt.Declare(x.Name, x.Access)
				}
				rt.Declare("other", kit.Access{Owns: []kit.Field{p}})
				if err := rt.Check(); err == nil || !strings.Contains(err.Error(), "two writers: "+w.Name+" and other") {
					t.Errorf("a second writer of %s, which %s owns: %v", p, w.Name, err)
				}
			}
		}
	}
}

// TestStatusHasAnOwner: every kind's status has a writer, in whole or in part.
func TestStatusHasAnOwner(t *testing.T) {
	owned := map[string]bool{}
	for _, w := range newTestControl(t).rt.Graph() {
		for _, f := range w.Owns {
			owned[f.Kind.Name] = owned[f.Kind.Name] || strings.HasPrefix(f.Path, "status")
		}
	}
	for _, k := range api.Kinds() {
		status := slices.ContainsFunc(k.Attrs, func(a schema.Attr) bool { return strings.HasPrefix(a.Path, "status.") })
		if status && !owned[k.Name] {
			t.Errorf("no writer owns %s.status", k.Name)
		}
	}
}

// TestNewProjectsHaveTheQuotaOfTheConfiguration: 0 means unlimited.
func TestNewProjectsHaveTheQuotaOfTheConfiguration(t *testing.T) {
	p := core.NewProject()
	c := &control{cfg: &config.Config{}}
	if c.newProject(p); p.Spec.Quota != nil {
		t.Errorf("%+v", p.Spec.Quota)
	}
	c.cfg.Quota = config.Quota{Sandboxes: 1, CPUMillis: 2, MemoryBytes: 3, DiskBytes: 4, SnapshotBytes: 6}
	c.newProject(p)
	if q := p.Spec.Quota; *q.Sandboxes != 1 || *q.CPUMillis != 2 || *q.MemoryBytes != 3 || *q.DiskBytes != 4 || q.Executions != nil || *q.SnapshotBytes != 6 {
		t.Errorf("%+v", q)
	}
}

// TestDebugControllers: the served graph has every controller with its
// declarations.
func TestDebugControllers(t *testing.T) {
	c := newTestControl(t)
	resp, err := (&debug{c}).Controllers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]server.ControllerStatus{}
	var names []string
	for _, s := range resp.Controllers {
		got[s.Name], names = s, append(names, s.Name)
	}
	want := []string{"addon", "api", "app-log", "app-log-retention", "app-preview", "autoscale", "build", "certificate-host", "certificate-order", "deployment", "disk", "disk-copy", "disk-schedule", "event", "execution", "node", "pool", "quota", "registrar", "retention", "runner-connection", "sandbox", "sandbox-retention", "scheduler", "snapshot", "task-run", "task-schedule", "template", "warm-pool", "webhook", "webhook-feed"}
	if !slices.Equal(names, want) {
		t.Errorf("writers %v, want %v", names, want)
	}
	if s := got["scheduler"]; !s.Controller || !slices.Equal(s.Owns, []string{"sandbox.spec.node", "sandbox.spec.runner"}) || !slices.Equal(s.Watches, []string{"sandbox", "node"}) ||
		len(s.Shares) != 1 || s.Shares[0].Owner != "sandbox" {
		t.Errorf("%+v", s)
	}
	if got["api"].Controller || resp.Synced || resp.LastSeen != nil {
		t.Errorf("%+v", resp)
	}
}
