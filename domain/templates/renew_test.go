package templates

import (
	"context"
	"slices"
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// mortalStore is a store whose process dies after its n-th transaction.
type mortalStore struct {
	entity.Store
	left int
}

func (s *mortalStore) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if s.left <= 0 {
		return entity.TxnResult{}, errs.New(errs.Unavailable, "the process is dead")
	}
	s.left--
	return s.Store.Txn(ctx, req)
}

// bases are the base images of a machine in a round of refreshes.
type bases struct{ round string }

func (b *bases) resolve(_ context.Context, name string) (string, error) {
	return name + "@sha256:" + b.round, nil
}

func (b *bases) newer(ctx context.Context, base, image string) (string, error) {
	if image == "elsewhere" {
		return "", nil
	}
	now, err := b.resolve(ctx, base)
	if now == image {
		return "", err
	}
	return now, err
}

// current returns the version that the name of a template alone selects.
func (f *fixture) current(name string) *sandbox.TemplateVersion {
	f.Helper()
	_, v, err := f.Describe(f.Context(), f.project, name)
	f.must(err)
	return v
}

// TestRenew: templates whose image was made again get a version with it, wherever the process dies. Sandboxes keep theirs.
func TestRenew(t *testing.T) {
	f := setup(t)
	b := &bases{round: "1"}
	f.Resolve = b.resolve
	f.Size = func(_ context.Context, image string) (int64, error) { return int64(len(image)), nil }
	var used []string
	for _, d := range languages.Templates()[:3] {
		used = append(used, d.Name)
		_, err := f.Image(t.Context(), f.current(d.Name))
		f.must(err)
	}
	slices.Sort(used)
	unused := languages.Templates()[3].Name
	renew := func(s entity.Store) ([]string, error) {
		before := f.Service.Store
		f.Service.Store = s
		defer func() { f.Service.Store = before }()
		return f.Renew(t.Context(), b.newer)
	}
	if names, err := renew(f.Store); len(names) != 0 || err != nil {
		t.Fatalf("nothing was made again: %v, %v", names, err)
	}

	sb := sandbox.NewSandbox()
	first := f.current(used[0])
	sb.Project, sb.Spec.Template.Image, sb.Spec.TemplateVersion = f.project, first.Status.Image, first.GetID()
	f.must(entity.Create(t.Context(), f.Store, sb))
	b.round = "2"
	for n := 0; n <= len(used); n++ {
		// Each of these processes has one transaction less to make than all of them before it.
		names, err := renew(&mortalStore{f.Store, min(n, 1)})
		if died := n < len(used); n > 0 && len(names) != 1 || died != (err != nil) {
			t.Errorf("process %d renewed %v: %v", n, names, err)
		}
		for _, name := range used {
			if v := f.current(name); v.Spec.Number == 2 != (v.Status.Image == v.Spec.Base+"@sha256:2") || v.Status.Phase != sandbox.TemplatePhaseReady {
				t.Errorf("%s has %+v", name, v)
			}
		}
	}
	if names, err := renew(f.Store); len(names) != 0 || err != nil {
		t.Errorf("again: %v, %v", names, err)
	}
	for _, name := range used {
		v := f.current(name)
		if v.Spec.Number != 2 || v.Status.Bytes != int64(len(v.Status.Image)) {
			t.Errorf("%s has %+v", name, v)
		}
	}
	if v := f.current(unused); v.Spec.Number != 1 || v.Status.Image != "" {
		t.Errorf("a template without sandboxes: %+v", v)
	}
	got, err := entity.Get[sandbox.Sandbox](t.Context(), f.Store, sb.ID)
	f.must(err)
	if got.Spec.Template.Image != first.Status.Image {
		t.Errorf("the sandbox has %s", got.Spec.Template.Image)
	}
	// What comes with the system has not changed: no further version.
	f.must(f.Ship(t.Context()))
	f.selects(used[0], 2)

	// Of the versions, the last two and those with a tag stay.
	tagged, _, err := f.Find(t.Context(), f.project, used[1])
	f.must(err)
	_, err = entity.ModifySpec(t.Context(), f.Store, tagged.ID, func(t *sandbox.Template) error { return setTag(t, "old", 1) })
	f.must(err)
	b.round = "3"
	if names, err := renew(f.Store); !slices.Equal(names, used) || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	for name, want := range map[string][]int64{used[0]: {3, 2}, used[1]: {3, 2, 1}} {
		tpl, _, err := f.Find(t.Context(), f.project, name)
		f.must(err)
		versions, err := f.Versions(t.Context(), tpl)
		f.must(err)
		var numbers []int64
		for _, v := range versions {
			numbers = append(numbers, v.Spec.Number)
		}
		if !slices.Equal(numbers, want) {
			t.Errorf("%s has versions %v, want %v", name, numbers, want)
		}
	}
}

// An image that another machine made, and one that fails, keep no other template from its new version.
func TestRenewLeavesOthers(t *testing.T) {
	f := setup(t)
	b := &bases{round: "1"}
	f.Resolve = b.resolve
	names := []string{languages.Templates()[0].Name, languages.Templates()[1].Name, languages.Templates()[2].Name}
	for _, name := range names {
		_, err := f.Image(t.Context(), f.current(name))
		f.must(err)
	}
	_, err := entity.ModifyStatus(t.Context(), f.Store, f.current(names[0]).ID, func(v *sandbox.TemplateVersion) error {
		v.Status.Image = "elsewhere"
		return nil
	})
	f.must(err)
	b.round = "2"
	broken := f.current(names[1]).Spec.Base
	renewed, err := f.Renew(t.Context(), func(ctx context.Context, base, image string) (string, error) {
		if base == broken {
			return "", errs.New(errs.Unavailable, "no packages").WithHint("try again")
		}
		return b.newer(ctx, base, image)
	})
	if !errs.Is(err, errs.Unavailable) || !slices.Equal(renewed, names[2:]) {
		t.Errorf("%v, %v", renewed, err)
	}
	f.selects(names[0], 1)
	f.selects(names[1], 1)
	f.selects(names[2], 2)
}
