package appnet

import (
	"math/rand/v2"
	"net/netip"
	"slices"
)

// StandIns has the addresses of the sandboxes of other nodes, of which each node chooses
// its own. They are of the networks for benchmarks, which no sandbox reaches otherwise
// unless the operator allows them.
var StandIns = netip.MustParsePrefix("198.19.0.0/16")

// maxStandIns bounds the addresses in use, so that a free one is found by chance.
const maxStandIns = 1 << 15

// WithStandIns returns a copy of apps with a stand-in for each sandbox of another node:
// the one that it has in t, or else one that t does not have.
func (t *Table) WithStandIns(apps []App) []App {
	used := map[netip.Addr]bool{}
	for a := range t.at {
		used[a] = true
	}
	apps = slices.Clone(apps)
	for i := range apps {
		apps[i].Members = slices.Clone(apps[i].Members)
		for j := range apps[i].Members {
			m := &apps[i].Members[j]
			m.StandIn = netip.Addr{}
			if m.Node == "" {
				continue
			}
			if m.StandIn = t.StandIn(m.Sandbox); !m.StandIn.IsValid() && len(used) < maxStandIns {
				m.StandIn = unused(used)
				used[m.StandIn] = true
			}
		}
	}
	return apps
}

// unused returns a random free address: a resolver in a sandbox may remember the one used last.
func unused(used map[netip.Addr]bool) netip.Addr {
	b := StandIns.Addr().As4()
	for {
		n := 1 + rand.N(1<<16-2) // neither the first address nor the last
		b[2], b[3] = byte(n>>8), byte(n)
		if a := netip.AddrFrom4(b); !used[a] {
			return a
		}
	}
}

// StandIn returns the stand-in of a sandbox, the zero Addr if it has none.
func (t *Table) StandIn(sandbox string) netip.Addr {
	if p, ok := t.of[sandbox]; ok {
		return p.member.StandIn
	}
	return netip.Addr{}
}

// At returns the sandbox that has a stand-in.
func (t *Table) At(a netip.Addr) (sandbox string, ok bool) {
	sandbox, ok = t.at[a]
	return sandbox, ok
}

// For returns the part of the table of the node self that another node gets: the sandboxes
// of that node, and the apps and sandboxes of services to which they may connect.
func (t *Table) For(node, self string) []App {
	var there []*App
	for i := range t.apps {
		if slices.ContainsFunc(t.apps[i].Members, func(m Member) bool { return m.Node == node }) {
			there = append(there, &t.apps[i])
		}
	}
	var out []App
	for _, a := range t.apps {
		if !slices.ContainsFunc(there, a.permits) {
			continue
		}
		members := a.Members
		a.Members = nil
		for _, m := range members {
			switch m.StandIn = (netip.Addr{}); {
			case m.Node == node:
				m.Node = ""
			case m.Service == "":
				continue // no name leads to it
			case m.Node == "":
				m.Node = self
			}
			a.Members = append(a.Members, m)
		}
		a.From = slices.DeleteFunc(slices.Clone(a.From), func(name string) bool {
			return !slices.ContainsFunc(there, func(o *App) bool { return o.Project == a.Project && o.Name == name })
		})
		out = append(out, a)
	}
	return out
}
