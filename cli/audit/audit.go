// Package audit has `r audit`: the record of calls that changed something, or
// were refused.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/history"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("audit", "Show who changed what, and what violates policies", newList(e), newPolicy(e))
}

type listOptions struct {
	*command.Env
	actor, subject, action string
	since, until           string
	limit                  int
	follow                 bool
}

// pageSize is how many records are asked for at once.
const pageSize = 1000

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{Env: e}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List calls that changed something, and refused ones, newest first",
		Long: `Lists the calls that changed something, and those that were refused, newest first: when, by which identity, from
where, what, and how it ended. A call with streams, such as exec, has two records: started, and its end. Admins see all
records, others those of the projects in which they have a role. history.audit in the configuration says how long they are kept.`,
		Example: "  r audit list --since 24h\n  r audit list --actor alice --action app.Apps/Delete\n  r audit list --subject app/blog --project shop --json\n  r audit list --follow",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.actor, "actor", "", "only calls of this identity; anonymous: without one")
	f.StringVar(&o.subject, "subject", "", "only calls about this KIND/ID, with the name or id that the call gave, such as app/blog")
	f.StringVar(&o.action, "action", "", "only calls of this method, such as app.Apps/Delete")
	f.StringVar(&o.since, "since", "", "only calls since then: an age (90m, 24h, 7d), a date, or a time (2026-01-02T15:04:05Z)")
	f.StringVar(&o.until, "until", "", "only calls before then, as --since")
	f.IntVar(&o.limit, "limit", 100, "at most so many records; with --follow so many of those that exist")
	f.BoolVarP(&o.follow, "follow", "f", false, "print the oldest first, and go on with new ones; with --json one in a line")
	cmd.MarkFlagsMutuallyExclusive("follow", "until")
	return cmd
}

func (o *listOptions) request() (*history.ListRequest, error) {
	req := &history.ListRequest{Project: o.GivenProject(), Actor: o.actor, Action: o.action}
	req.SetDefaults()
	if o.subject != "" {
		kind, id, ok := strings.Cut(o.subject, "/")
		if !ok || kind == "" || id == "" {
			return nil, exit.Usagef("--subject %s: want KIND/ID, such as app/blog", o.subject)
		}
		req.SubjectKind, req.Subject = kind, id
	}
	if o.limit < 1 {
		return nil, exit.Usagef("--limit %d: want at least 1", o.limit)
	}
	now := time.Now()
	for _, f := range []struct {
		flag, text string
		to         **time.Time
	}{{"since", o.since, &req.Since}, {"until", o.until, &req.Until}} {
		if f.text == "" {
			continue
		}
		t, err := command.ParseTime(f.flag, f.text, now)
		if err != nil {
			return nil, err
		}
		*f.to = &t
	}
	return req, nil
}

// entry is a record as JSON.
type entry struct {
	ID          string          `json:"id"`
	Time        time.Time       `json:"time"`
	Project     string          `json:"project,omitempty"`
	Actor       string          `json:"actor"`
	Action      string          `json:"action"`
	SubjectKind string          `json:"subject_kind,omitempty"`
	Subject     string          `json:"subject,omitempty"`
	Outcome     string          `json:"outcome"`
	RequestID   string          `json:"request_id,omitempty"`
	Detail      json.RawMessage `json:"detail,omitempty"`
}

func (o *listOptions) run(ctx context.Context) error {
	req, err := o.request()
	if err != nil {
		return err
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	client := history.NewHistoryClient(c)
	if o.follow {
		return o.goOn(ctx, client, req)
	}
	entries, err := read(ctx, client, req, o.limit)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(entries)
	}
	o.print(entries)
	if req.Cursor != "" {
		o.Notef("there are older records; --limit shows more, --until %s those before\n", entries[len(entries)-1].Time.UTC().Format(time.RFC3339))
	}
	return nil
}

// read returns the newest records that req selects, newest first. The cursor of
// req is then that of older ones.
func read(ctx context.Context, client history.HistoryClient, req *history.ListRequest, limit int) ([]entry, error) {
	entries := []entry{}
	for {
		req.Limit = int64(min(pageSize, limit-len(entries)))
		resp, err := client.List(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, r := range resp.Records {
			e := entry{
				ID: r.ID, Time: r.Time, Project: r.Project, Actor: r.Actor, Action: r.Action, SubjectKind: r.SubjectKind, Subject: r.Subject,
				Outcome: r.Outcome, RequestID: r.RequestID,
			}
			if json.Valid([]byte(r.Detail)) {
				e.Detail = json.RawMessage(r.Detail)
			}
			entries = append(entries, e)
		}
		if req.Cursor = resp.Cursor; req.Cursor == "" || len(entries) >= limit {
			return entries, nil
		}
	}
}

func (o *listOptions) print(entries []entry) {
	var rows [][]string
	for _, e := range entries {
		rows = append(rows, o.row(&e))
	}
	o.Table([]string{"TIME", "ACTOR", "FROM", "ACTION", "SUBJECT", "PROJECT", "OUTCOME"}, rows)
}

func (o *listOptions) row(e *entry) []string {
	subject := e.SubjectKind
	if e.Subject != "" {
		subject += "/" + e.Subject
	}
	return []string{e.Time.UTC().Format(time.RFC3339), e.Actor, e.from(), e.Action, subject, e.Project, o.outcome(e.Outcome)}
}

// from is the address of the caller, or how it called.
func (e *entry) from() string {
	var d struct{ From, Address string }
	_ = json.Unmarshal(e.Detail, &d) // without it, it is not known
	return cmp.Or(d.Address, d.From)
}

func (o *listOptions) outcome(s string) string {
	if slices.Contains([]string{"ok", "started"}, s) {
		return s
	}
	return o.Paint(console.Red, s)
}
