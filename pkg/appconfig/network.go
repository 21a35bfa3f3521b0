package appconfig

import (
	"cmp"
	"slices"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// maxAllowFrom bounds allow_from.
const maxAllowFrom = 256

// egressModes are the choices of network.egress.
var egressModes = []string{string(egress.All), string(egress.List), string(egress.None)}

// network reads the table network.
func (p *parser) network(to **Network) field {
	keys := func(n *Network) table {
		names := p.list(&n.AllowFrom, appName)
		return table{
			"egress": p.oneOf(&n.Egress, egressModes),
			"allow":  p.list(&n.Allow, nil),
			"deny":   p.list(&n.Deny, nil),
			"allow_from": {names.schema, func(key string, v any) {
				n.Restricted = true
				names.set(key, v)
				if len(n.AllowFrom) > maxAllowFrom {
					p.fail(key, "%s has %d apps, but at most %d", key, len(n.AllowFrom), maxAllowFrom)
				}
			}},
		}
	}
	return field{object(keys(&Network{})), func(key string, v any) {
		n := &Network{}
		p.table(keys(n)).set(key, v)
		switch {
		case n.Egress != "" && !slices.Contains(egressModes, n.Egress):
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
	}}
}
