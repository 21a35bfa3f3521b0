package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// loadRecord counts the requests of each event, and has the failures.
type loadRecord struct {
	mu        sync.Mutex
	began     time.Time
	events    []*loadPeriod
	all       map[string]int // requests, by protocol
	takeovers []time.Time    // of the ingress
	failures  []string
}

// loadPeriod is the time from an event to the next.
type loadPeriod struct {
	name                    string
	began                   time.Time
	requests, failed, ended int
	took                    []time.Duration // of requests that have an answer
}

func (r *loadRecord) enter(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.began.IsZero() {
		r.began, r.all = now, map[string]int{}
	}
	r.events = append(r.events, &loadPeriod{name: event, began: now})
}

// add counts a request, or a message of a stream. took is 0 for a message that is no
// answer.
func (r *loadRecord) add(protocol string, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.events[len(r.events)-1]
	e.requests++
	r.all[protocol]++
	if err != nil {
		e.failed++
		now := time.Now()
		r.failures = append(r.failures, fmt.Sprintf("%s: %s after the begin, %s into %s, after %s: %v", protocol,
			now.Sub(r.began).Round(time.Millisecond), now.Sub(e.began).Round(time.Millisecond), e.name, took.Round(time.Millisecond), err))
		return
	}
	if took > 0 {
		e.took = append(e.took, took)
	}
}

// streamEnded counts a stream that was ended in an orderly way.
func (r *loadRecord) streamEnded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[len(r.events)-1].ended++
}

// tookOver notes that a new ingress process has taken over since a time.
func (r *loadRecord) tookOver(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takeovers = append(r.takeovers, since)
}

// mayBeCut reports whether the ingress may cut a stream of that time now: it is one of a
// process that was replaced, and its drain time is over.
func (r *loadRecord) mayBeCut(opened time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.takeovers, func(t time.Time) bool {
		return time.Since(t) >= loadDrain && opened.Before(t.Add(converge))
	})
}

// endsStreams reports whether the event stops sandboxes without the drain time.
func (r *loadRecord) endsStreams() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[len(r.events)-1].name == drainNode
}

func (r *loadRecord) requests() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.all {
		n += k
	}
	return n
}

func (r *loadRecord) of(protocol string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[protocol]
}

func (r *loadRecord) failed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures)
}

// table has a line for each event that took place, with all times that it did.
func (r *loadRecord) table() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	by := map[string]*loadPeriod{}
	for _, e := range r.events {
		sum, ok := by[e.name]
		if !ok {
			sum = &loadPeriod{name: e.name}
			by[e.name], names = sum, append(names, e.name)
		}
		sum.requests, sum.failed, sum.ended = sum.requests+e.requests, sum.failed+e.failed, sum.ended+e.ended
		sum.took = append(sum.took, e.took...)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "event\trequests\tfailed\tstreams ended\tp50\tp99\tmax\t")
	for _, n := range names {
		e := by[n]
		slices.Sort(e.took)
		at := func(percent int) time.Duration {
			if len(e.took) == 0 {
				return 0
			}
			return e.took[(len(e.took)-1)*percent/100].Round(100 * time.Microsecond)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t\n", n, e.requests, e.failed, e.ended, at(50), at(99), at(100))
	}
	for _, p := range protocols {
		fmt.Fprintf(w, "%s\t%d\t\t\t\t\t\t\n", p, r.all[p])
	}
	if err := w.Flush(); err != nil {
		return err.Error()
	}
	return b.String()
}
