package kittest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// recorder records the errors of a test that is expected to fail.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// TestHold: declared operations pass, undeclared ones fail the test, and an
// operation that the store refuses is no write.
func TestHold(t *testing.T) {
	s := pgtest.Store(t, storetest.Kinds()...)
	p := new(storetest.Project)
	if err := entity.Create(t.Context(), s, p); err != nil {
		t.Fatal(err)
	}
	always := func(schema.Object, schema.Object) bool { return true }
	thing := storetest.ThingKind
	for name, c := range map[string]struct {
		access kit.Access
		do     func(ctx context.Context, s entity.Store, o *storetest.Thing) error
		want   []string
	}{
		"owned": {kit.Access{Owns: kit.Fields(thing, "spec", "labels.a", "status.Phase")}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			o.Spec.Color, o.Labels, o.Status.Phase = "blue", map[string]string{"a": "x"}, "done"
			spec, _ := entity.UpdateSpecOp(o)
			status, _ := entity.UpdateStatusOp(o)
			_, err := s.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{spec, status}})
			return err
		}, nil},
		"another field": {kit.Access{Owns: kit.Fields(thing, "status.Count")}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			o.Status.Count, o.Status.Phase = 1, "done"
			return entity.UpdateStatus(ctx, s, o)
		}, []string{"w writes thing.status.Phase, which it does not declare"}},
		"a label": {kit.Access{Owns: kit.Fields(thing, "spec", "labels.a")}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			o.Labels = map[string]string{"b": "x"}
			return entity.UpdateSpec(ctx, s, o)
		}, []string{"w writes thing.labels.b, which it does not declare"}},
		"another kind": {kit.Access{}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			o.Spec.Color = "blue"
			return entity.UpdateSpec(ctx, s, o)
		}, []string{"w writes thing, which it does not declare"}},
		"shared": {kit.Access{Shares: []kit.Share{{Field: kit.Field{Kind: thing, Path: "spec"}, When: always}}}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			o.Spec.Color = "blue"
			return entity.UpdateSpec(ctx, s, o)
		}, nil},
		"shared in another case": {kit.Access{Shares: []kit.Share{{
			Field: kit.Field{Kind: thing, Path: "spec"},
			When:  func(before, after schema.Object) bool { return after.(*storetest.Thing).Spec.Color == "green" },
		}}}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			o.Spec.Color = "blue"
			return entity.UpdateSpec(ctx, s, o)
		}, []string{"w writes thing.spec.Color, which it does not declare"}},
		"refused by the store": {kit.Access{Owns: kit.Fields(thing, "status")}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			o.Spec.Color, o.SpecRevision = "blue", 1
			if err := entity.UpdateSpec(ctx, s, o); err == nil {
				t.Error("no conflict")
			}
			return nil
		}, nil},
		"create, delete, read": {kit.Access{}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			fresh := &storetest.Thing{Meta: schema.Meta{Project: p.ID}, Spec: storetest.ThingSpec{Color: "red"}}
			if err := entity.Create(ctx, s, fresh); err != nil {
				return err
			}
			if err := entity.Delete(ctx, s, fresh); err != nil {
				return err
			}
			if _, err := entity.Get[storetest.Thing](ctx, s, o.ID); err != nil {
				return err
			}
			_, _, err := entity.List[storetest.Node](ctx, s, entity.Query{})
			return err
		}, []string{"w creates thing, which it does not declare", "w deletes thing, which it does not declare",
			"w reads thing, which it does not declare", "w reads node, which it does not declare"}},
		"declared create, delete, read": {kit.Access{
			Reads: []*schema.Kind{thing}, Creates: []*schema.Kind{thing}, Deletes: []*schema.Kind{thing},
		}, func(ctx context.Context, s entity.Store, o *storetest.Thing) error {
			if _, err := entity.Get[storetest.Thing](ctx, s, o.ID); err != nil {
				return err
			}
			return entity.Delete(ctx, s, o)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := &storetest.Thing{Meta: schema.Meta{Project: p.ID}, Spec: storetest.ThingSpec{Color: "red"}}
			if err := entity.Create(t.Context(), s, o); err != nil {
				t.Fatal(err)
			}
			r := &recorder{TB: t}
			if err := c.do(t.Context(), HoldWriter(r, s, "w", c.access), o); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.errors, c.want) {
				t.Errorf("got %q, want %q", r.errors, c.want)
			}
		})
	}
}
