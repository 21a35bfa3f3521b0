package appconfig

import (
	"cmp"
	"slices"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// maxAllowFrom bounds allow_from.
const maxAllowFrom = 256

// network reads the table network.
func (p *parser) network(to **Network) func(string, any) {
	return func(key string, v any) {
		n := &Network{}
		modes := []string{string(egress.All), string(egress.List), string(egress.None)}
		p.table(table{
			"egress": p.oneOf(&n.Egress, modes),
			"allow":  p.list(&n.Allow, nil),
			"deny":   p.list(&n.Deny, nil),
			"allow_from": func(key string, v any) {
				n.Restricted = true
				p.list(&n.AllowFrom, appName)(key, v)
				if len(n.AllowFrom) > maxAllowFrom {
					p.fail(key, "%s has %d apps, but at most %d", key, len(n.AllowFrom), maxAllowFrom)
				}
			},
		})(key, v)
		switch {
		case n.Egress != "" && !slices.Contains(modes, n.Egress):
			return // it was said
		case n.Egress != "":
		case len(n.Allow) > 0:
			n.Egress = string(egress.List)
		case len(n.Deny) > 0:
			n.Egress = string(egress.All)
		}
		if _, err := egress.Parse(cmp.Or(n.Egress, string(egress.All)), n.Allow, n.Deny); err != nil {
			p.keep(p.line(key), errs.New(errs.InvalidArgument, "%s%s: %w", p.prefix(key), key, err).WithHint("%s", errs.HintOf(err)))
		}
		*to = n
	}
}
