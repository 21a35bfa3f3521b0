package informer

import (
	"cmp"
	"maps"
	"slices"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// cache holds the entities of one kind. Everything but kind is guarded by
// Set.mu; only Run's goroutine changes objects, so it may read them without.
type cache struct {
	kind *schema.Kind
	trim func(schema.Object) // nil: keep the whole object

	listed  bool            // the next watch includes it
	synced  bool            // it was listed and the handlers got the listing
	floor   schema.Revision // its listing includes its changes up to here
	objects map[schema.ID]schema.Object
	all     byID
	indexes map[string]*index

	handlers []*handler                  // replaced, never modified
	waits    map[schema.ID]chan struct{} // closed at the next change of an entity
}

// byID returns objects in the order of their ids.
type byID []schema.Object

func (b byID) find(id schema.ID) (at int, found bool) {
	return slices.BinarySearchFunc(b, id, func(o schema.Object, id schema.ID) int { return cmp.Compare(o.GetMeta().ID, id) })
}

// put adds o, or replaces the object with its id.
func (b *byID) put(o schema.Object) {
	at, found := b.find(o.GetMeta().ID)
	if found {
		(*b)[at] = o
		return
	}
	*b = slices.Insert(*b, at, o)
}

func (b *byID) remove(id schema.ID) {
	if at, found := b.find(id); found {
		*b = slices.Delete(*b, at, at+1)
	}
}

// index finds objects by what values returns of them.
type index struct {
	values  func(schema.Object) []string
	objects map[string]byID
}

func newCache(k *schema.Kind) *cache {
	return &cache{kind: k, objects: map[schema.ID]schema.Object{}, indexes: map[string]*index{}, waits: map[schema.ID]chan struct{}{}}
}

type handler struct{ fn func(Change[schema.Object]) }

func (c *cache) addHandler(h *handler) { c.handlers = append(slices.Clip(c.handlers), h) }

func (c *cache) removeHandler(h *handler) {
	c.handlers = slices.DeleteFunc(slices.Clone(c.handlers), func(x *handler) bool { return x == h })
}

// set stores o under its id; nil removes.
func (c *cache) set(id schema.ID, o schema.Object) {
	old := c.objects[id]
	for _, ix := range c.indexes {
		ix.change(old, o)
	}
	if o == nil {
		delete(c.objects, id)
		c.all.remove(id)
	} else {
		c.objects[id] = o
		c.all.put(o)
	}
	if w := c.waits[id]; w != nil {
		close(w)
		delete(c.waits, id)
	}
}

// wait returns a channel that is closed at the next change of an entity.
func (c *cache) wait(id schema.ID) <-chan struct{} {
	w := c.waits[id]
	if w == nil {
		w = make(chan struct{})
		c.waits[id] = w
	}
	return w
}

func (c *cache) addIndex(name string, values func(schema.Object) []string) {
	ix := &index{values: values, objects: map[string]byID{}}
	for _, o := range c.all {
		ix.change(nil, o)
	}
	c.indexes[name] = ix
}

// change replaces old by o, of which either may be nil.
func (ix *index) change(old, o schema.Object) {
	var values []string
	if o != nil {
		values = ix.values(o)
	}
	if old != nil {
		id := old.GetMeta().ID
		for _, v := range ix.values(old) {
			if slices.Contains(values, v) {
				continue // replaced below
			}
			list := ix.objects[v]
			if list.remove(id); len(list) == 0 {
				delete(ix.objects, v)
			} else {
				ix.objects[v] = list
			}
		}
	}
	for _, v := range values {
		list := ix.objects[v]
		list.put(o)
		ix.objects[v] = list
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Informer is a Set's cache of T's kind.
type Informer[T any, P entity.ObjectPtr[T]] struct {
	s *Set
	c *cache
}

// Of returns the informer of T's kind, which all callers share:
//
//	sandboxes := informer.Of[sandbox.Sandbox](set)
func Of[T any, P entity.ObjectPtr[T]](s *Set) Informer[T, P] {
	return Informer[T, P]{s, s.kind(P(new(T)).EntityKind())}
}

// Trim has fn remove from each object the fields that this process does not
// need, to save memory. It must come before Run.
func (i Informer[T, P]) Trim(fn func(P)) {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.c.trim = func(o schema.Object) { fn(o.(P)) }
}

// AddIndex makes ByIndex(name, v) find the objects for which values returns v.
// values must depend only on its argument.
func (i Informer[T, P]) AddIndex(name string, values func(P) []string) {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.c.addIndex(name, func(o schema.Object) []string { return values(o.(P)) })
}

// Handle is Set.Handle with typed objects.
func (i Informer[T, P]) Handle(fn func(Change[P])) (remove func()) {
	return i.s.Handle(i.c.kind, func(c Change[schema.Object]) { fn(Change[P]{as[P](c.Old), as[P](c.New)}) })
}

// as is o as a P, nil for nil.
func as[P schema.Object](o schema.Object) P {
	p, _ := o.(P)
	return p
}

// Get returns the object with an id, nil if there is none.
func (i Informer[T, P]) Get(id schema.ID) P {
	i.s.mu.RLock()
	defer i.s.mu.RUnlock()
	return as[P](i.c.objects[id])
}

// Len returns the number of objects.
func (i Informer[T, P]) Len() int {
	i.s.mu.RLock()
	defer i.s.mu.RUnlock()
	return len(i.c.objects)
}

// List returns every object, ordered by id.
func (i Informer[T, P]) List() []P {
	i.s.mu.RLock()
	defer i.s.mu.RUnlock()
	return typed[P](i.c.all)
}

// ByIndex returns the objects with a value in an index, ordered by id.
func (i Informer[T, P]) ByIndex(name, value string) []P {
	i.s.mu.RLock()
	defer i.s.mu.RUnlock()
	ix := i.c.indexes[name]
	if ix == nil {
		panic("informer: no index " + name) // a programming error
	}
	return typed[P](ix.objects[value])
}

func typed[P schema.Object](objects byID) []P {
	out := make([]P, len(objects))
	for k, o := range objects {
		out[k] = o.(P)
	}
	return out
}
