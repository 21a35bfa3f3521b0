package entity

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

type watchOptions struct {
	*command.Env
	all    bool
	noList bool
}

func newWatch(e *command.Env) *cobra.Command {
	o := &watchOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "watch KIND",
		Short:             "Print every change of the entities of a kind",
		Long:              "Lists the entities of a kind, then prints every change, without gaps, also across a restart of the server.",
		Args:              command.Args(1, 1, "KIND"),
		ValidArgsFunction: completeKinds,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().BoolVarP(&o.all, "all-projects", "A", false, "entities of every project")
	cmd.Flags().BoolVar(&o.noList, "changes-only", false, "do not list the existing entities first")
	return cmd
}

func (o *watchOptions) run(ctx context.Context, kind string) error {
	k, err := api.Kind(kind)
	if err != nil {
		return err
	}
	records, token, err := o.ListRecords(ctx, k, o.all, nil)
	if err != nil {
		return err
	}
	if !o.noList {
		for i := range records {
			if err := o.print(k, "there", &records[i]); err != nil {
				return err
			}
		}
	}
	r, err := o.Store(ctx)
	if err != nil {
		return err
	}
	q := entity.WatchQuery{Kinds: []string{k.Name}, From: token}
	if !o.all && k.Scope == schema.ScopeProject {
		if q.Project, err = o.ProjectID(ctx); err != nil {
			return err
		}
	}
	for {
		err := o.follow(ctx, r, k, &q)
		switch errs.ClassOf(err) {
		case errs.Unavailable, errs.ResourceExhausted:
			o.Notef("%v; resuming\n", err)
		default:
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *watchOptions) follow(ctx context.Context, r entity.Reader, k *schema.Kind, q *entity.WatchQuery) error {
	w, err := r.Watch(ctx, *q)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for i := range events {
			ev := &events[i]
			what := ""
			switch ev.Type {
			case entity.EventPut:
				what = "changed"
				if ev.Record.Revision == ev.Record.CreateRevision {
					what = "created"
				}
			case entity.EventDelete:
				what = "deleted"
			}
			if what != "" {
				if err := o.print(k, what, &ev.Record); err != nil {
					return err
				}
			}
			q.From = ev.Token
		}
	}
}

func (o *watchOptions) print(k *schema.Kind, what string, rec *schema.Record) error {
	obj, err := k.Decode(rec)
	if err != nil {
		return err
	}
	if o.JSON {
		d, err := document(obj)
		if err != nil {
			return err
		}
		return o.PrintJSONLine(map[string]any{"event": what, "revision": rec.Revision, "entity": d})
	}
	styles := map[string]console.Style{"created": console.Green, "deleted": console.Red, "there": console.Dim}
	cells := []string{o.Paint(styles[what], what), string(rec.ID), rec.Name}
	for _, col := range k.Columns {
		if v := col.Value(obj, time.Now()); !col.Wide && v != "" && col.Title != "AGE" {
			cells = append(cells, strings.ToLower(col.Title)+"="+console.Cut(v, 0))
		}
	}
	o.Printf("%s\n", strings.Join(cells, "\t"))
	return nil
}
