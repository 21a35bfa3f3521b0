// Package entity has `r entity`: read and change the store, the same way for every kind.
package entity

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("entity", "Read and change entities of every kind in the store",
		newKinds(e), newList(e), newGet(e), newPut(e), newDelete(e), newWatch(e))
}

func completeKinds(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, k := range api.Kinds() {
		names = append(names, k.Name+"\t"+k.Doc)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func newKinds(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "kinds",
		Short: "List the kinds of entities",
		Args:  command.Args(0, 0),
		RunE:  func(*cobra.Command, []string) error { return runKinds(e) },
	}
}

func runKinds(e *command.Env) error {
	type kind struct {
		Name    string   `json:"name"`
		Plural  string   `json:"plural"`
		Aliases []string `json:"aliases,omitempty"`
		Domain  string   `json:"domain"`
		Scope   string   `json:"scope"`
		Doc     string   `json:"doc"`
	}
	var list []kind
	var rows [][]string
	for _, k := range api.Kinds() {
		list = append(list, kind{k.Name, k.Plural, k.Short, k.Domain, string(k.Scope), k.Doc})
		rows = append(rows, []string{k.Name, strings.Join(append([]string{k.Plural}, k.Short...), ", "), string(k.Scope), k.Doc})
	}
	if e.JSON {
		return e.PrintJSON(list)
	}
	e.Table([]string{"KIND", "ALIASES", "SCOPE", "DESCRIPTION"}, rows)
	return nil
}

type listOptions struct {
	*command.Env
	out    output
	all    bool
	wide   bool
	watch  bool
	labels map[string]string
}

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "list KIND",
		Short:             "List the entities of a kind",
		Example:           "  r entity list app\n  r entity list sandboxes --wide -w",
		Args:              command.Args(1, 1, "KIND"),
		ValidArgsFunction: completeKinds,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.out.addFlags(cmd, e)
	cmd.Flags().BoolVarP(&o.all, "all-projects", "A", false, "of every project")
	cmd.Flags().BoolVar(&o.wide, "wide", false, "more columns")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "draw again after every change")
	cmd.Flags().StringToStringVarP(&o.labels, "label", "l", nil, "only those with the label, key=value")
	return cmd
}

func (o *listOptions) run(ctx context.Context, kind string) error {
	k, err := api.Kind(kind)
	if err != nil {
		return err
	}
	format, err := o.out.format(o.Env)
	if err != nil {
		return err
	}
	return o.Watch(ctx, o.watch, []string{k.Name}, func(ctx context.Context) error {
		records, _, err := o.ListRecords(ctx, k, o.all, o.labels)
		if err != nil {
			return err
		}
		objects := make([]schema.Object, len(records))
		for i := range records {
			if objects[i], err = k.Decode(&records[i]); err != nil {
				return err
			}
		}
		if format != formatTable {
			return printDocuments(o.Env, format, objects, o.watch)
		}
		Table(o.Console, k, objects, o.wide, time.Now())
		return nil
	})
}

// Table prints entities with the columns of their kind.
func Table(c *console.Console, k *schema.Kind, objects []schema.Object, wide bool, now time.Time) {
	headers := []string{"NAME", "ID"}
	var columns []schema.Column
	for _, col := range k.Columns {
		if wide || !col.Wide {
			headers, columns = append(headers, col.Title), append(columns, col)
		}
	}
	var rows [][]string
	for _, o := range objects {
		row := []string{o.GetMeta().Name, string(o.GetMeta().ID)}
		for _, col := range columns {
			row = append(row, col.Value(o, now))
		}
		rows = append(rows, row)
	}
	c.Table(headers, rows)
}

type getOptions struct {
	*command.Env
	out output
}

func newGet(e *command.Env) *cobra.Command {
	o := &getOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "get KIND NAME|ID",
		Short:             "Print an entity",
		Example:           "  r entity get app shop\n  r entity get app shop -o json",
		Args:              command.Args(2, 2, "KIND", "NAME or ID"),
		ValidArgsFunction: completeKinds,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	o.out.addFlags(cmd, e)
	return cmd
}

func (o *getOptions) run(ctx context.Context, kind, name string) error {
	k, err := api.Kind(kind)
	if err != nil {
		return err
	}
	format, err := o.out.format(o.Env)
	if err != nil {
		return err
	}
	rec, err := o.FindRecord(ctx, k, name)
	if err != nil {
		return err
	}
	obj, err := k.Decode(&rec)
	if err != nil {
		return err
	}
	if format == formatTable && o.out.given == "" {
		format = formatYAML // every field of one entity
	}
	if format == formatTable {
		Table(o.Console, k, []schema.Object{obj}, false, time.Now())
		return nil
	}
	return printDocument(o.Env, format, obj)
}

// document returns an entity as JSON.
func document(o schema.Object) (json.RawMessage, error) { return schema.EncodeObjectJSON(o) }
