package appconfig

import (
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// maxAllowFrom bounds allow_from.
const maxAllowFrom = 256

// network reads the table network.
func (p *parser) network(to **Network) field {
	keys := func(n *Network) table {
		names := p.list(&n.AllowFrom, appName)
		return table{
			"egress": p.oneOf(&n.Egress, []string{string(egress.All), string(egress.List), string(egress.None)}),
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
		if n.Egress == "" {
			n.Egress = string(egress.All)
			if len(n.Allow) > 0 {
				n.Egress = string(egress.List)
			}
		}
		if _, err := egress.Parse(n.Egress, n.Allow, n.Deny); err != nil {
			p.keep(p.line(key), errs.New(errs.InvalidArgument, "%s%s: %w", p.prefix(key), key, err).WithHint("%s", errs.HintOf(err)))
		}
		*to = n
	}}
}
