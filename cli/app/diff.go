package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/errs"
)

type diffOptions struct{ appOptions }

func newDiff(e *command.Env) *cobra.Command {
	o := &diffOptions{appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:   "diff [FROM [TO]]",
		Short: "Show what differs between two versions",
		Long: `Shows what differs between two versions of an app: image, commit, services, tasks, environment, network. FROM is by
default the version before TO, and TO the newest one. Of secrets the names are compared, not the values.`,
		Example: "  r app diff --app shop\n  r app diff v3 v5 --app shop",
		Args:    command.Args(0, 2, "FROM", "TO"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

// difference is a setting that two versions do not share. A setting that a version
// lacks is empty there.
type difference struct {
	Path string `json:"path"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

func (o *diffOptions) run(ctx context.Context, args []string) error {
	name, err := command.AppArg(nil, o.app)
	if err != nil {
		return err
	}
	a, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	versions, _, err := command.All[app.AppVersion](ctx, o.Env, ofApp(app.AppVersionAttrApp, a))
	if err != nil {
		return err
	}
	slices.SortFunc(versions, func(a, b *app.AppVersion) int { return int(a.Spec.Number - b.Spec.Number) })
	from, to, err := choose(name, versions, args)
	if err != nil {
		return err
	}
	list, err := compare(&from.Spec, &to.Spec)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"from": versionName(from.Spec.Number), "to": versionName(to.Spec.Number), "differences": list})
	}
	if len(list) == 0 {
		o.Notef("%s and %s have the same configuration\n", versionName(from.Spec.Number), versionName(to.Spec.Number))
		return nil
	}
	o.Notef("%s → %s\n", versionName(from.Spec.Number), versionName(to.Spec.Number))
	for _, d := range list {
		switch {
		case d.From == "":
			o.Printf("%s\n", o.Paint(console.Green, "+ "+d.Path+" = "+d.To))
		case d.To == "":
			o.Printf("%s\n", o.Paint(console.Red, "- "+d.Path+" = "+d.From))
		default:
			o.Printf("~ %s = %s → %s\n", d.Path, o.Paint(console.Red, d.From), o.Paint(console.Green, d.To))
		}
	}
	return nil
}

// indexOf returns where in versions the one is that an argument names.
func indexOf(name string, versions []*app.AppVersion, arg string) (int, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(arg, "v"), 10, 64)
	if err == nil {
		for i, v := range versions {
			if v.Spec.Number == n {
				return i, nil
			}
		}
	}
	return 0, errs.New(errs.NotFound, "app %s has no version %s", name, arg).WithHint("`r app history %s` lists them", name)
}

// choose returns the versions that the arguments name. The list is in the order of
// their numbers.
func choose(name string, versions []*app.AppVersion, args []string) (from, to *app.AppVersion, err error) {
	if len(versions) < 2 {
		return nil, nil, errs.New(errs.FailedPrecondition, "app %s has %d versions: there is nothing to compare", name, len(versions))
	}
	t := len(versions) - 1
	if len(args) == 2 {
		if t, err = indexOf(name, versions, args[1]); err != nil {
			return nil, nil, err
		}
	}
	f := t - 1
	if len(args) > 0 {
		if f, err = indexOf(name, versions, args[0]); err != nil {
			return nil, nil, err
		}
	}
	return versions[max(f, 0)], versions[t], nil
}

// unlike are settings that differ between all versions.
var unlike = []string{"app", "number", "build", "copied_from"}

// compare lists what differs, in the order of the paths.
func compare(from, to *app.AppVersionSpec) ([]difference, error) {
	a, err := settings(from)
	if err != nil {
		return nil, err
	}
	b, err := settings(to)
	if err != nil {
		return nil, err
	}
	list := []difference{}
	for path, value := range a {
		if b[path] != value {
			list = append(list, difference{Path: path, From: value, To: b[path]})
		}
	}
	for path, value := range b {
		if _, ok := a[path]; !ok {
			list = append(list, difference{Path: path, To: value})
		}
	}
	slices.SortFunc(list, func(a, b difference) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

// settings are the settings of a version by their paths, such as services.web.port.
func settings(s *app.AppVersionSpec) (map[string]string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, errs.New(errs.Internal, "version %d: %w", s.Number, err)
	}
	var all map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&all); err != nil {
		return nil, errs.New(errs.Internal, "version %d: %w", s.Number, err)
	}
	for _, key := range unlike {
		delete(all, key)
	}
	found := map[string]string{}
	flatten(found, "", all)
	return found, nil
}

// flatten adds a value and what is below it. Elements of lists are named by their
// names; a list without names is one value.
func flatten(found map[string]string, path string, value any) {
	below := func(key string) string {
		if path == "" {
			return key
		}
		return path + "." + key
	}
	switch v := value.(type) {
	case map[string]any:
		for key, sub := range v {
			flatten(found, below(key), sub)
		}
		return
	case []any:
		named := len(v) > 0
		for _, e := range v {
			m, _ := e.(map[string]any)
			_, ok := m["name"].(string)
			named = named && ok
		}
		if named {
			for _, e := range v {
				m := e.(map[string]any)
				name := m["name"].(string)
				delete(m, "name")
				flatten(found, below(name), m)
			}
			return
		}
		text, _ := json.Marshal(v) // it was decoded from JSON
		found[path] = string(text)
		return
	case string:
		found[path] = strconv.Quote(v)
		return
	}
	found[path] = fmt.Sprint(value)
}
