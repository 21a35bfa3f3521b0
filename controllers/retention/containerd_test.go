package retention_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/retention"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/runsctest"
)

// TestReplacedBasesInContainerd: containerd has neither the content nor the file systems of a base image that was replaced.
// A sandbox of an app on such a base runs on, and the app starts again.
func TestReplacedBasesInContainerd(t *testing.T) {
	m := runsctest.New(t)
	ctx := t.Context()
	store := pgtest.Store(t, api.Kinds()...)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := core.NewProject()
	p.Name = "p"
	must(entity.Create(ctx, store, p))
	a := app.NewApp()
	a.Project, a.Name = p.ID, "shop"
	must(entity.Create(ctx, store, a))

	st := containerd.NewImages(m.Containerd)
	must(st.Delete(ctx, m.Image)) // the driver's test has it
	imported := func(name, base string, archive []byte) *containerd.Image {
		t.Helper()
		var labels map[string]string
		if base != "" {
			labels = map[string]string{images.LabelBase: base}
		}
		ref, err := st.Import(ctx, bytes.NewReader(archive), name, labels)
		must(err)
		img, err := st.Resolve(ctx, ref) // unpacks it
		must(err)
		return img
	}
	other := func(content string) []byte {
		return executiontest.ImageOf(t, map[string][]byte{"bin/program": []byte(content)})
	}
	const base = images.BasePrefix + "debian:13"
	unused := imported(base, "unused", other("of a base that no app uses"))
	current := imported(base, "current", other("of the base that replaced both"))
	old := imported(base, "old", executiontest.Image(t))
	built, err := st.Keep(ctx, old.Ref, images.Name(a.GetID())) // the app's build has all layers of its base
	must(err)
	var web app.Service
	web.SetDefaults()
	web.Name = "web"
	v := app.NewAppVersion()
	v.Project, v.Name = p.ID, "shop-v1"
	v.Spec.App, v.Spec.Number, v.Spec.Image, v.Spec.Services = a.GetID(), 1, built, []app.Service{web}
	must(entity.Create(ctx, store, v))
	spec := execution.Spec{ID: "sb-shop", Image: built, Network: execution.NetworkNone, MemoryBytes: 128 << 20, CPUMillis: 1000}
	runs := func(what string) {
		t.Helper()
		if i, err := m.Driver.Ensure(ctx, spec); err != nil || i.Phase != execution.Running {
			t.Fatalf("%s: %+v, %v", what, i, err)
		}
		// The program is read from the image's file system.
		pr, err := m.Driver.Exec(ctx, spec.ID, execution.ExecSpec{Command: []string{"/bin/guest", "cat"}})
		must(err)
		defer pr.Close()
		must(pr.Stdin().Close())
		if code, err := pr.Wait(ctx); code != 0 || err != nil {
			t.Errorf("%s: a process of it ended with %d, %v", what, code, err)
		}
	}
	runs("before")

	hourAgo := time.Now().Add(-time.Hour)
	r := &retention.Images{
		Store: store, Images: st, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Now().Add(time.Hour) },
		Bases: func() (map[string]time.Time, error) {
			return map[string]time.Time{"sha256:unused": hourAgo, "sha256:old": hourAgo, "sha256:current": {}}, nil
		},
	}
	if n, err := r.Collect(ctx); n != 2 || err != nil {
		t.Errorf("%d deleted, %v", n, err)
	}
	c, err := m.Containerd.Client()
	must(err)
	l, err := c.LeasesService().Create(ctx, leases.WithRandomID())
	must(err)
	must(c.LeasesService().Delete(ctx, l, leases.SynchronousDelete)) // collects garbage

	all, err := st.List(ctx, nil)
	must(err)
	var refs []string
	for _, i := range all {
		refs = append(refs, i.Ref)
	}
	if slices.Sort(refs); !slices.Equal(refs, slices.Sorted(slices.Values([]string{built, current.Ref}))) {
		t.Errorf("containerd has %s", strings.Join(refs, ", "))
	}
	for _, want := range []struct {
		what  string
		img   *containerd.Image
		there bool
	}{{"unused base", unused, false}, {"current base", current, true}, {"base of the app", old, true}} {
		_, err := c.ContentStore().Info(ctx, want.img.Digest)
		_, serr := c.SnapshotService(containerd.Snapshotter).Stat(ctx, want.img.ChainID)
		for _, err := range []error{err, serr} {
			if (err == nil) != want.there || err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("%s: content and file system: %v", want.what, err)
			}
		}
	}

	runs("after the removal")
	must(m.Driver.Delete(ctx, spec.ID))
	m.Restart(t) // it remembers no image
	runs("started again")
	must(m.Driver.Delete(ctx, spec.ID))
}
