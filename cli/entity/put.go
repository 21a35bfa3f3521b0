package entity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"miren.dev/runtime/api"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

type putOptions struct {
	*command.Env
	file   string
	status bool
}

func newPut(e *command.Env) *cobra.Command {
	o := &putOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "put FILE",
		Short: "Create or change entities from YAML or JSON",
		Long: `Creates or changes the entities in FILE (YAML documents or JSON, - for standard input), as ` + "`r entity get`" + ` prints them.
An entity is identified by its id, or by its name in the project. With "spec_revision", the change is refused if the
entity has changed since that revision; without it, if the entity changes while this command runs. A secret keeps its
value if the file has "[secret]" for it.`,
		Example: "  r entity get app shop > shop.yaml\n  r entity put shop.yaml",
		Args:    command.Args(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file = args[0]
			return o.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&o.status, "status", false, "change the status, which controllers write, instead of the spec; for repairs")
	return cmd
}

// maxFile bounds the file, in bytes.
const maxFile = 16 << 20

func (o *putOptions) run(ctx context.Context) error {
	name, in := o.file, o.In
	if o.file == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(o.file)
		if errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.NotFound, "file %s does not exist", o.file)
		}
		if err != nil {
			return errs.New(errs.Unavailable, "%w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return errs.New(errs.Unavailable, "read %s: %w", name, err)
	}
	if len(b) > maxFile {
		return errs.New(errs.InvalidArgument, "%s is larger than %d bytes", name, maxFile)
	}
	objects, err := decode(name, b)
	if err != nil {
		return err
	}
	for _, obj := range objects {
		if err := o.put(ctx, obj); err != nil {
			return err
		}
	}
	return nil
}

// decode reads every document of a file.
func decode(name string, b []byte) ([]schema.Object, error) {
	var objects []schema.Object
	for dec := yaml.NewDecoder(bytes.NewReader(b)); ; {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "%s: %w", name, err)
		}
		if len(n.Content) == 0 || n.Content[0].Tag == "!!null" {
			continue
		}
		docs := n.Content
		if docs[0].Kind == yaml.SequenceNode {
			docs = docs[0].Content
		}
		for _, d := range docs {
			obj, err := decodeOne(name, d)
			if err != nil {
				return nil, err
			}
			objects = append(objects, obj)
		}
	}
	if len(objects) == 0 {
		return nil, errs.New(errs.InvalidArgument, "%s contains no entity", name)
	}
	return objects, nil
}

func decodeOne(name string, n *yaml.Node) (schema.Object, error) {
	where := func(err error) error { return errs.Wrap(err, "%s:%d", name, n.Line) }
	asWritten(n)
	var doc map[string]any
	if err := n.Decode(&doc); err != nil {
		return nil, errs.New(errs.InvalidArgument, "%s:%d: an entity is expected: %w", name, n.Line, err)
	}
	kindName, isString := doc["kind"].(string)
	if !isString {
		return nil, where(errs.New(errs.InvalidArgument, "kind is missing").WithHint("`r entity kinds` lists the kinds"))
	}
	k, err := api.Kind(kindName)
	if err != nil {
		return nil, where(err)
	}
	doc["kind"] = k.Name
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, where(errs.New(errs.InvalidArgument, "%w", err))
	}
	obj := k.New()
	if err := schema.DecodeObjectJSON(b, obj); err != nil {
		return nil, where(err)
	}
	return obj, nil
}

// asWritten keeps timestamps as text: YAML would parse them.
func asWritten(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, c := range n.Content {
		asWritten(c)
	}
}

func (o *putOptions) put(ctx context.Context, obj schema.Object) error {
	store, err := o.Store(ctx)
	if err != nil {
		return err
	}
	k, m := obj.EntityKind(), obj.GetMeta()
	if k.Scope == schema.ScopeProject && m.Project == "" {
		if m.Project, err = o.ProjectID(ctx); err != nil {
			return err
		}
	}
	old, err := existing(ctx, store, k, m)
	if errs.Is(err, errs.NotFound) {
		if o.status {
			return err
		}
		*m = schema.Meta{ID: m.ID, Project: m.Project, Name: m.Name, Labels: m.Labels}
		if err := entity.Create(ctx, store, obj); err != nil {
			return err
		}
		return o.done("created", obj)
	}
	if err != nil {
		return err
	}
	om := old.GetMeta()
	schema.KeepSecrets(obj, old)
	given := *m
	*m = *om
	m.Name, m.Labels = given.Name, given.Labels
	update := entity.UpdateSpec
	if o.status {
		update = entity.UpdateStatus
		if given.StatusRevision != 0 {
			m.StatusRevision = given.StatusRevision
		}
	} else if given.SpecRevision != 0 {
		m.SpecRevision = given.SpecRevision
	}
	same, err := unchanged(old, obj, o.status)
	if err != nil {
		return err
	}
	if same {
		return o.done("unchanged", obj)
	}
	err = update(ctx, store, obj)
	if errs.Is(err, errs.Conflict) {
		return errs.New(errs.Conflict, "%s %s has changed since it was read: %w", k.Name, label(om), err).
			WithHint("get the entity again, and put your change of it")
	}
	if err != nil {
		return err
	}
	return o.done("changed", obj)
}

// unchanged reports whether writing obj would leave old as it is.
func unchanged(old, obj schema.Object, status bool) (bool, error) {
	a, err := schema.EncodeObject(old)
	if err != nil {
		return false, err
	}
	b, err := schema.EncodeObject(obj)
	if err != nil {
		return false, err
	}
	if a.SpecRevision != b.SpecRevision || a.StatusRevision != b.StatusRevision {
		return false, nil // the caller's revision is outdated
	}
	if status {
		return bytes.Equal(a.Status, b.Status), nil
	}
	return bytes.Equal(a.Spec, b.Spec) && a.Name == b.Name && maps.Equal(a.Labels, b.Labels), nil
}

// existing returns the entity with the id or name of m; NotFound without one.
func existing(ctx context.Context, r entity.Reader, k *schema.Kind, m *schema.Meta) (schema.Object, error) {
	if m.ID != "" {
		rec, err := r.Get(ctx, k.Name, m.ID)
		if err != nil {
			return nil, err
		}
		return k.Decode(&rec)
	}
	if m.Name == "" {
		return nil, errs.New(errs.NotFound, "a %s without id and name", k.Name)
	}
	page, err := r.List(ctx, entity.Query{Kind: k.Name, Project: m.Project, Name: m.Name, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(page.Records) == 0 {
		return nil, errs.New(errs.NotFound, "%s %q does not exist", k.Name, m.Name)
	}
	return k.Decode(&page.Records[0])
}

func label(m *schema.Meta) string {
	if m.Name != "" {
		return m.Name
	}
	return string(m.ID)
}

func (o *putOptions) done(what string, obj schema.Object) error {
	if o.JSON {
		d, err := document(obj)
		if err != nil {
			return err
		}
		return o.PrintJSONLine(map[string]any{"event": what, "entity": d})
	}
	m := obj.GetMeta()
	o.Printf("%s\n", strings.TrimSpace(what+" "+obj.EntityKind().Name+" "+m.Name+" "+string(m.ID)))
	return nil
}
