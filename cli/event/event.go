// Package event has `r event`: what happened in a project.
package event

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/event"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("event", "What happened in the project", newList(e))
}

type listOptions struct {
	*command.Env
	typ, subject, since, after string
	limit                      int
	follow                     bool
}

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{Env: e}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List what happened in the project, newest first",
		Long: `Lists what happened in the project, newest first: sandboxes that ran, were paused or ended, executions, snapshots, templates and
deployments. These are the events that webhooks deliver, and they have the same ids. The last 10,000 of the last 14 days
(history.events in the configuration) are kept. --json has all that is known of an event.

With --follow the oldest comes first, and new ones follow, each once. --after goes on after an event that was seen; if it is not
kept any more, the command fails, for others may be missing too.`,
		Example: "  r event list --since 1h\n  r event list --type 'sandbox.*' --follow\n  r event list --subject sb-4k2j7q8n1m5p3r9t --json\n  r event list --follow --json --after evt-5f1d8c0c6b7a4b0e9d3f2a1c4e5b6a7d",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.typ, "type", "", "only events of this type, or of a noun, such as sandbox.ended or 'sandbox.*'")
	f.StringVar(&o.subject, "subject", "", "only events of this sandbox, execution, snapshot, version of a template or deployment; its id")
	f.StringVar(&o.since, "since", "", "only events since then: an age (90m, 24h, 7d), a date, or a time (2026-01-02T15:04:05Z)")
	f.IntVar(&o.limit, "limit", 100, "at most so many events; with --follow so many of those that exist")
	f.BoolVarP(&o.follow, "follow", "f", false, "print the oldest first, and go on with new ones; with --json one in a line")
	f.StringVar(&o.after, "after", "", "with --follow: all events after this one; its id")
	cmd.MarkFlagsMutuallyExclusive("after", "since")
	cmd.MarkFlagsMutuallyExclusive("after", "limit")
	return cmd
}

// entry is an event as JSON.
type entry struct {
	ID        string         `json:"id"`
	Type      string         `json:"type"`
	Timestamp time.Time      `json:"timestamp"`
	Data      map[string]any `json:"data"`
}

func entries(records []schema.Record) ([]entry, error) {
	out := make([]entry, len(records))
	for i := range records {
		e, err := entity.Decode[event.Event](&records[i])
		if err != nil {
			return nil, err
		}
		c, err := e.Content()
		if err != nil {
			return nil, err
		}
		out[i] = entry{string(e.ID), c.Type, c.Timestamp, c.Data}
	}
	return out, nil
}

func (o *listOptions) run(ctx context.Context) error {
	if o.limit < 1 {
		return exit.Usagef("--limit %d: want at least 1", o.limit)
	}
	if o.after != "" && !o.follow {
		return exit.Usagef("--after goes with --follow")
	}
	var since *time.Time
	if o.since != "" {
		t, err := command.ParseTime("since", o.since, time.Now())
		if err != nil {
			return err
		}
		since = &t
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	client := event.NewEventsClient(c)
	if o.follow {
		return o.goOn(ctx, client, since)
	}
	all, more, err := o.read(ctx, client, since)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(all)
	}
	var rows [][]string
	for i := range all {
		rows = append(rows, all[i].row())
	}
	o.Table([]string{"TIME", "TYPE", "SUBJECT", "REASON", "LABELS"}, rows)
	if more {
		o.Notef("there are older events; --limit shows more\n")
	}
	return nil
}

// read returns the newest events, newest first, and reports whether there are more.
func (o *listOptions) read(ctx context.Context, client event.EventsClient, since *time.Time) ([]entry, bool, error) {
	all := []entry{}
	req := &event.ListRequest{Project: o.Project(), Type: o.typ, Subject: o.subject, Since: since}
	for {
		req.Limit = int64(min(event.MaxPage, o.limit-len(all)))
		resp, err := client.List(ctx, req)
		if err != nil {
			return nil, false, err
		}
		page, err := entries(resp.Events)
		if err != nil {
			return nil, false, err
		}
		all = append(all, page...)
		if req.Cursor = resp.Cursor; req.Cursor == "" || len(all) >= o.limit {
			return all, req.Cursor != "", nil
		}
	}
}

func (e *entry) row() []string {
	text := func(name string) string {
		s, _ := e.Data[name].(string)
		return s
	}
	var labels []string
	if m, ok := e.Data["labels"].(map[string]any); ok {
		for k, v := range m {
			s, _ := v.(string)
			labels = append(labels, k+"="+s)
		}
	}
	slices.Sort(labels)
	return []string{e.Timestamp.UTC().Format(time.RFC3339), e.Type, text("kind") + "/" + text("id"), text("reason"), strings.Join(labels, " ")}
}

// retryInterval is the time between attempts to reach the server.
const retryInterval = time.Second

// goOn prints the events that exist, oldest first, and then new ones, until ctx ends
// or an error other than Unavailable.
func (o *listOptions) goOn(ctx context.Context, client event.EventsClient, since *time.Time) error {
	last := o.after
	if last == "" {
		all, _, err := o.read(ctx, client, since)
		if err != nil {
			return err
		}
		for _, e := range slices.Backward(all) {
			if err := o.printLine(&e); err != nil {
				return err
			}
			last = e.ID
		}
	}
	if last == "" && since == nil {
		epoch := time.Unix(0, 0) // there was none: all that exist now are new
		since = &epoch
	}
	for lost := false; ; {
		err := o.stream(ctx, client, since, &last, &lost)
		if !errs.Is(err, errs.Unavailable) || ctx.Err() != nil {
			return err
		}
		if !lost {
			lost = true
			o.Notef("the server cannot be reached; waiting for it\n")
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stream prints the events after last, and sets it to the last that was printed.
func (o *listOptions) stream(ctx context.Context, client event.EventsClient, since *time.Time, last *string, lost *bool) error {
	st, err := client.Follow(ctx, &event.FollowRequest{Project: o.Project(), Type: o.typ, Subject: o.subject, After: *last, Since: since})
	if err != nil {
		return err
	}
	defer st.Close()
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return errs.New(errs.Unavailable, "the server ended the stream")
		}
		if err != nil {
			return err
		}
		*lost = false
		all, err := entries(m.Events)
		if err != nil {
			return err
		}
		for i := range all {
			if err := o.printLine(&all[i]); err != nil {
				return err
			}
			*last = all[i].ID
		}
	}
}

func (o *listOptions) printLine(e *entry) error {
	if o.JSON {
		return o.PrintJSONLine(e)
	}
	cells := e.row()
	for i, c := range cells {
		cells[i] = console.Cut(c, 0)
	}
	o.Printf("%s\n", strings.Join(cells, "\t"))
	return nil
}
