package audit

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/history"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/errs"
)

const (
	// followInterval is the time between two reads.
	followInterval = time.Second
	// late is how much older than a record that was read already another one may
	// be that is read after it: its call was recorded at the same time.
	late = 10 * time.Second
)

// goOn prints the records that exist, oldest first, and then new ones, until ctx
// ends or an error other than Unavailable.
func (o *listOptions) goOn(ctx context.Context, client history.HistoryClient, req *history.ListRequest) error {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	seen, limit, lost, asked := map[string]time.Time{}, o.limit, false, req.Since
	for {
		entries, err := read(ctx, client, req, limit)
		switch {
		case err == nil:
			lost = false
			if err := o.printNew(entries, seen); err != nil {
				return err
			}
			if req.Cursor != "" && len(entries) > 0 { // older ones are left out
				asked = &entries[len(entries)-1].Time
			}
			// From now on everything new, by the clock of the records.
			req.Since, limit = since(seen, asked), math.MaxInt
		case !errs.Is(err, errs.Unavailable):
			return err
		case !lost:
			lost = true
			o.Notef("the server cannot be reached; waiting for it\n")
		}
		req.Cursor = ""
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// printNew prints the entries, of which the newest is the first, that are not in
// seen, and adds them.
func (o *listOptions) printNew(entries []entry, seen map[string]time.Time) error {
	for _, e := range slices.Backward(entries) {
		if _, ok := seen[e.ID]; ok {
			continue
		}
		seen[e.ID] = e.Time
		if o.JSON {
			if err := o.PrintJSONLine(e); err != nil {
				return err
			}
			continue
		}
		cells := o.row(&e)
		for i, c := range cells[:len(cells)-1] { // the last has the colours of outcome
			cells[i] = console.Cut(c, 0)
		}
		o.Printf("%s\n", strings.Join(cells, "\t"))
	}
	return nil
}

// since returns the time from which records may be new, and drops those before it
// from seen. Without any it is that of the request.
func since(seen map[string]time.Time, asked *time.Time) *time.Time {
	var newest time.Time
	for _, t := range seen {
		if t.After(newest) {
			newest = t
		}
	}
	if newest.IsZero() {
		return asked
	}
	from := newest.Add(-late)
	for id, t := range seen {
		if t.Before(from) {
			delete(seen, id)
		}
	}
	if asked != nil && asked.After(from) {
		return asked
	}
	return &from
}
