package mock

import (
	"bytes"
	"context"
	"iter"
	"sync"

	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/pkg/errs"
)

// objects are the requests and the output of executions, in memory.
type objects struct {
	mu  sync.Mutex
	all map[string][]byte
}

var _ executions.Objects = (*objects)(nil)

// Get implements executions.Objects.
func (o *objects) Get(_ context.Context, key string) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b, ok := o.all[key]
	if !ok {
		return nil, errs.New(errs.NotFound, "there is no object %s", key)
	}
	return bytes.Clone(b), nil
}

// Create implements executions.Objects.
func (o *objects) Create(_ context.Context, key string, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.all[key]; ok {
		return errs.New(errs.AlreadyExists, "there is an object %s", key)
	}
	if o.all == nil {
		o.all = map[string][]byte{}
	}
	o.all[key] = bytes.Clone(data)
	return nil
}

// Delete implements executions.Objects.
func (o *objects) Delete(_ context.Context, key string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, key)
	return nil
}

// List implements executions.Objects.
func (o *objects) List(context.Context) iter.Seq2[executions.Object, error] {
	o.mu.Lock()
	defer o.mu.Unlock()
	var list []executions.Object
	for key, b := range o.all {
		list = append(list, executions.Object{Key: key, Size: int64(len(b))})
	}
	return func(yield func(executions.Object, error) bool) {
		for _, x := range list {
			if !yield(x, nil) {
				return
			}
		}
	}
}
