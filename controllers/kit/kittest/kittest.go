// Package kittest holds controllers to what they declare: Hold returns a store
// that fails the test when a write or a read goes beyond a kit.Access.
package kittest

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// Hold returns s limited to what the controller declares.
func Hold(t testing.TB, s entity.Store, c kit.Controller) entity.Store {
	return HoldWriter(t, s, c.Name, c.Declared())
}

// HoldWriter returns s limited to what a writer that is no controller declares.
func HoldWriter(t testing.TB, s entity.Store, name string, a kit.Access) entity.Store {
	return &held{Store: s, t: t, name: name, access: a}
}

type held struct {
	entity.Store
	t      testing.TB
	name   string
	access kit.Access
}

func (h *held) read(kind string) {
	h.t.Helper()
	if !has(h.access.Reads, kind) {
		h.t.Errorf("%s reads %s, which it does not declare", h.name, kind)
	}
}

func has(kinds []*schema.Kind, name string) bool {
	return slices.ContainsFunc(kinds, func(k *schema.Kind) bool { return k.Name == name })
}

func (h *held) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	h.read(kind)
	return h.Store.Get(ctx, kind, id)
}

func (h *held) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	h.read(q.Kind)
	return h.Store.List(ctx, q)
}

func (h *held) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	if len(q.Kinds) == 0 {
		h.read("") // a watch of every kind
	}
	for _, kind := range q.Kinds {
		h.read(kind)
	}
	return h.Store.Watch(ctx, q)
}

// Txn checks each operation against the current entity. An operation that is
// conditional on another revision fails in the store, so it is not checked.
func (h *held) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	problems := make([]string, len(req.Ops))
	for i := range req.Ops {
		problems[i] = h.check(ctx, &req.Ops[i])
	}
	res, err := h.Store.Txn(ctx, req)
	if err == nil {
		for _, p := range problems {
			if p != "" {
				h.t.Errorf("%s %s, which it does not declare", h.name, p)
			}
		}
	}
	return res, err
}

// check returns the undeclared part of an operation, or "".
func (h *held) check(ctx context.Context, op *entity.Op) string {
	kind := op.Record.Kind
	switch op.Type {
	case entity.OpCreate:
		if !has(h.access.Creates, kind) {
			return "creates " + kind
		}
		return ""
	case entity.OpDelete:
		if !has(h.access.Deletes, kind) {
			return "deletes " + kind
		}
		return ""
	case entity.OpCheck:
		return ""
	}
	now, err := h.Store.Get(ctx, kind, op.Record.ID)
	if err != nil {
		return "" // the transaction fails too, or its conditions decide
	}
	next := now
	if op.Type == entity.OpUpdateSpec {
		if now.SpecRevision != op.If {
			return ""
		}
		next.Name, next.Labels, next.Lease, next.Spec = op.Record.Name, op.Record.Labels, op.Record.Lease, op.Record.Spec
	} else {
		if now.StatusRevision != op.If {
			return ""
		}
		next.Status = op.Record.Status
	}
	k := h.kind(kind)
	if k == nil {
		return fmt.Sprintf("writes %s", kind)
	}
	before, err := k.Decode(&now)
	if err != nil {
		return err.Error()
	}
	after, err := k.Decode(&next)
	if err != nil {
		return err.Error()
	}
	var bad []string
	for _, path := range Changed(before, after) {
		if !h.may(kit.Field{Kind: k, Path: path}, before, after) {
			bad = append(bad, kind+"."+path)
		}
	}
	if len(bad) == 0 {
		return ""
	}
	return "writes " + strings.Join(bad, ", ")
}

// kind finds a kind by its name among those whose fields are declared.
func (h *held) kind(name string) *schema.Kind {
	for _, f := range h.access.Owns {
		if f.Kind.Name == name {
			return f.Kind
		}
	}
	for _, s := range h.access.Shares {
		if s.Field.Kind.Name == name {
			return s.Field.Kind
		}
	}
	return nil
}

func (h *held) may(f kit.Field, before, after schema.Object) bool {
	for _, o := range h.access.Owns {
		if o.Covers(f) {
			return true
		}
	}
	for _, s := range h.access.Shares {
		if s.Field.Covers(f) && s.When(before, after) {
			return true
		}
	}
	return false
}

// Changed returns the paths of the attributes in which two states of an entity
// differ, as deep as components go.
func Changed(before, after schema.Object) []string {
	a, b := map[string][]byte{}, map[string][]byte{}
	for o, into := range map[schema.Object]map[string][]byte{before: a, after: b} {
		m := o.GetMeta()
		into["name"], into["lease"] = []byte(m.Name), []byte(m.Lease)
		for k, v := range m.Labels {
			into["labels."+k] = []byte(v)
		}
		flatten("spec", reflect.ValueOf(o.SpecPtr()).Elem(), into)
		flatten("status", reflect.ValueOf(o.StatusPtr()).Elem(), into)
	}
	var out []string
	for path := range a {
		if _, ok := b[path]; !ok {
			out = append(out, path)
		}
	}
	for path, v := range b {
		if old, ok := a[path]; !ok || !bytes.Equal(old, v) {
			out = append(out, path)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(out)))
}

// flatten adds the encoded values of a struct's fields by their JSON names.
func flatten(path string, v reflect.Value, into map[string][]byte) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		at, fv := path+"."+name, v.Field(i)
		if fv.Kind() == reflect.Struct && fv.Type() != reflect.TypeFor[time.Time]() && fv.Type() != reflect.TypeFor[schema.Secret]() {
			flatten(at, fv, into)
			continue
		}
		b, err := schema.Marshal(fv.Interface())
		if err != nil {
			panic(fmt.Sprintf("%s: %v", at, err)) // the store has encoded it too
		}
		into[at] = b
	}
}
