// Package template has `r template`: named descriptions of sandboxes.
package template

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("template", "Templates of sandboxes", newList(e), newShow(e), newBuild(e), newLogs(e), newSBOM(e), newTag(e), newAlias(e), newDelete(e))
}

func client(ctx context.Context, e *command.Env) (sandbox.TemplatesClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return sandbox.NewTemplatesClient(c), nil
}

func decode[T any, P entity.ObjectPtr[T]](records []schema.Record) ([]P, error) {
	var out []P
	for i := range records {
		o, err := entity.Decode[T, P](&records[i])
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

func newList(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the templates that the project can use",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return list(cmd.Context(), e) },
	}
}

func list(ctx context.Context, e *command.Env) error {
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	resp, err := c.List(ctx, &sandbox.TemplatesRequest{Project: e.Project()})
	if err != nil {
		return err
	}
	templates, err := decode[sandbox.Template](resp.Templates)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(templates)
	}
	var rows [][]string
	for _, t := range templates {
		rows = append(rows, []string{t.Name, schema.Cell(t.Status.Number), t.Spec.Title, schema.CellAge(t.CreatedAt, time.Now())})
	}
	e.Table([]string{"NAME", "VERSION", "TITLE", "AGE"}, rows)
	return nil
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "show NAME",
		Short:   "Show the details of a template and its versions",
		Example: "  r template show python\n  r template show python:2",
		Args:    command.Args(1, 1, "NAME"),
		RunE:    func(cmd *cobra.Command, args []string) error { return show(cmd.Context(), e, args[0]) },
	}
}

// get returns a template with its versions.
func get(ctx context.Context, e *command.Env, name string) (*sandbox.TemplateResponse, error) {
	c, err := client(ctx, e)
	if err != nil {
		return nil, err
	}
	return c.Show(ctx, &sandbox.TemplateRequest{Project: e.Project(), Template: name})
}

func show(ctx context.Context, e *command.Env, name string) error {
	resp, err := get(ctx, e, name)
	if err != nil {
		return err
	}
	return print(e, resp)
}

// named reports whether the name of a template says which version is meant.
func named(name string) bool { return strings.Contains(name, ":") }

func print(e *command.Env, resp *sandbox.TemplateResponse) error {
	t, err := entity.Decode[sandbox.Template](&resp.Template)
	if err != nil {
		return err
	}
	var v *sandbox.TemplateVersion
	if resp.Selected != nil {
		if v, err = entity.Decode[sandbox.TemplateVersion](resp.Selected); err != nil {
			return err
		}
	}
	versions, err := decode[sandbox.TemplateVersion](resp.Versions)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(map[string]any{"template": t, "selected": v, "versions": versions})
	}
	line := func(name, value string) {
		if value != "" {
			e.Printf("%s %s\n", e.Paint(console.Dim, (name + "          ")[:10]), console.Cut(value, 0))
		}
	}
	line("name", t.Name)
	line("title", t.Spec.Title)
	line("aliases", strings.Join(t.Spec.Aliases, ", "))
	if v != nil {
		printVersion(line, v)
	}
	tags := map[int64][]string{}
	for tag, n := range t.Spec.Tags {
		tags[n] = append(tags[n], tag)
	}
	var rows [][]string
	for _, v := range versions {
		slices.Sort(tags[v.Spec.Number])
		size := ""
		if v.Status.Bytes > 0 {
			size = schema.CellBytes(v.Status.Bytes)
		}
		rows = append(rows, []string{
			schema.Cell(v.Spec.Number), string(v.Status.Phase), strings.Join(tags[v.Spec.Number], ", "), size, schema.CellAge(v.CreatedAt, time.Now()),
			strings.SplitN(v.Status.Message, "\n", 2)[0],
		})
	}
	e.Table([]string{"NUMBER", "STATE", "TAGS", "SIZE", "AGE", "MESSAGE"}, rows)
	return nil
}

// printVersion prints the version that a name selects.
func printVersion(line func(name, value string), v *sandbox.TemplateVersion) {
	line("version", schema.Cell(v.Spec.Number))
	line("state", string(v.Status.Phase))
	line("message", v.Status.Message)
	line("base", v.Spec.Base)
	line("image", v.Status.Image)
	line("user", v.Spec.User)
	line("workdir", v.Spec.Workdir)
	line("start", strings.Join(v.Spec.Start, " "))
	if p := v.Spec.Ready; p != nil {
		line("ready", ready(p))
	}
	if v.Spec.Capabilities != sandbox.CapabilitySetNone {
		line("capabilities", string(v.Spec.Capabilities))
	}
	r := v.Spec.Resources
	line("limits", command.Limits(r))
}

func ready(p *sandbox.Probe) string {
	what := fmt.Sprintf("port %d", p.Port)
	switch p.Kind {
	case sandbox.ProbeKindHTTP:
		what += " answers GET " + p.Path
	case sandbox.ProbeKindExec:
		what = strings.Join(p.Command, " ") + " exits with 0"
	}
	return what + ", within " + p.Deadline.String()
}
