// Package api lists every kind of entity. The kinds themselves are in
// api/<domain>, generated from schema.yml by entity/cmd/schemagen.
package api

import (
	"slices"
	"strings"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/suggest"
)

// Kinds returns every kind, by name. The descriptors are shared; do not
// change them.
func Kinds() []*schema.Kind {
	all := slices.Concat(addon.Kinds, core.Kinds, sandbox.Kinds, app.Kinds, certificate.Kinds, disk.Kinds, event.Kinds, execution.Kinds, secret.Kinds, webhook.Kinds)
	slices.SortFunc(all, func(a, b *schema.Kind) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Kind returns the kind with the given name, plural or alias; "-" and "_" are
// the same. It returns NotFound with a suggestion if there is none.
func Kind(nameOrAlias string) (*schema.Kind, error) {
	want := strings.ReplaceAll(strings.ToLower(nameOrAlias), "-", "_")
	var known []string
	for _, k := range Kinds() {
		words := append([]string{k.Name, k.Plural}, k.Short...)
		if slices.Contains(words, want) {
			return k, nil
		}
		known = append(known, words...)
	}
	err := errs.New(errs.NotFound, "there is no kind %q", nameOrAlias).With("kind", nameOrAlias)
	if s := suggest.Nearest(want, known); s != "" {
		return nil, err.WithHint("Did you mean %q?", s)
	}
	return nil, err.WithHint("List the kinds with: r entity kinds")
}
