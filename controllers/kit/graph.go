package kit

import (
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// Info is the declaration of a writer and, for a controller, its state.
type Info struct {
	Name    string
	Kind    *schema.Kind   // nil: it reconciles no kind
	Watches []*schema.Kind // kinds besides Kind
	Access

	Controller bool // the fields below are for controllers only
	Workers    int
	Queue      Depth
	Runs       int64    // runs that ended since the start
	Failure    *Failure // the last failure; nil: none
}

// Failure is a run that failed.
type Failure struct {
	Key schema.ID
	Err error
	At  time.Time
}

// Graph returns every writer, ordered by name.
func (rt *Runtime) Graph() []Info {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	var out []Info
	for _, w := range rt.others {
		out = append(out, Info{Name: w.name, Access: w.Access})
	}
	for _, w := range rt.workers {
		i := Info{Name: w.Name, Kind: w.Kind, Watches: w.Watched(), Access: w.Access, Controller: true, Workers: w.Workers, Queue: w.queue.Depth()}
		w.mu.Lock()
		i.Runs, i.Failure = w.runs, w.failure
		w.mu.Unlock()
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return out
}
