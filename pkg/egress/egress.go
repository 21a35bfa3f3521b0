// Package egress has the network policies of sandboxes: nothing, all
// that the node's firewall lets sandboxes reach, or a list of networks and
// domains. A policy never opens what that firewall closes: the machine itself,
// other sandboxes, private, link-local and shared networks, metadata services.
//
//	a network      203.0.113.0/24, or 203.0.113.7 for one address
//	a domain       example.com: this name
//	subdomains     *.example.com: every name below example.com, but not example.com
//
// Deny wins over Allow. A network is matched by the address of a packet,
// whatever its protocol and port. A domain is matched by the name that a sandbox
// asks the name server for, and by the name in a TLS handshake (port 443) or an
// HTTP request (port 80): an allowed domain opens those two TCP ports only.
//
// An Injection has the proxy add a secret to the requests to a host, which the
// policy then permits at port 443 without a rule in Allow.
package egress

import (
	"net/netip"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// Mode says which connections a policy permits before its rules are applied.
type Mode string

// Modes.
const (
	None Mode = "none" // nothing, no names either
	All  Mode = "all"  // all that the firewall permits, except what Deny names
	List Mode = "list" // what Allow names, except what Deny names
)

// Modes are all modes.
var Modes = []Mode{None, All, List}

// MaxRules bounds Allow, and Deny.
const MaxRules = 256

// Policy of a sandbox. Policies are not changed once made.
type Policy struct {
	Mode   Mode        `json:"mode"`
	Allow  []Rule      `json:"allow,omitempty"`  // for List only
	Deny   []Rule      `json:"deny,omitempty"`   // for All and List
	Inject []Injection `json:"inject,omitempty"` // for All and List
}

// Open is the policy of a sandbox for which none was set.
func Open() Policy { return Policy{Mode: All} }

// Closed permits nothing.
func Closed() Policy { return Policy{Mode: None} }

// Parse makes a policy of the texts of its rules. InvalidArgument says which text is wrong.
func Parse(mode string, allow, deny []string, inject ...Injection) (Policy, error) {
	p := Policy{Mode: Mode(mode), Inject: inject}
	for _, l := range []struct {
		name  string
		texts []string
		rules *[]Rule
	}{{"allow", allow, &p.Allow}, {"deny", deny, &p.Deny}} {
		for _, t := range l.texts {
			r, err := ParseRule(t)
			if err != nil {
				return Policy{}, errs.Wrap(err, "%s", l.name)
			}
			*l.rules = append(*l.rules, r)
		}
	}
	return p, p.Validate()
}

// Validate returns InvalidArgument if the rules do not fit the mode or are too many.
func (p Policy) Validate() error {
	switch {
	case !slices.Contains(Modes, p.Mode):
		return errs.New(errs.InvalidArgument, "network policy %q is none of %q", p.Mode, Modes)
	case len(p.Allow) > MaxRules || len(p.Deny) > MaxRules:
		return errs.New(errs.InvalidArgument, "network policy: %d networks and domains are allowed and %d denied, of at most %d each", len(p.Allow), len(p.Deny), MaxRules)
	case len(p.Inject) > MaxInjections:
		return errs.New(errs.InvalidArgument, "network policy: %d secrets are injected, of at most %d", len(p.Inject), MaxInjections)
	case p.Mode == None && len(p.Allow)+len(p.Deny)+len(p.Inject) > 0:
		return errs.New(errs.InvalidArgument, "network policy none has no rules").WithHint("use the policy list to allow some networks or domains")
	case p.Mode == All && len(p.Allow) > 0:
		return errs.New(errs.InvalidArgument, "network policy all has nothing to allow").WithHint("use the policy list, or deny what must not be reached")
	case p.Mode == List && len(p.Allow)+len(p.Inject) == 0:
		return errs.New(errs.InvalidArgument, "network policy list allows nothing").WithHint("allow a network or a domain, or use the policy none")
	}
	return p.validateInjections()
}

// Filtered reports whether the proxy must see the names of connections: the
// policy permits some destinations and not others, or injects secrets.
func (p Policy) Filtered() bool {
	return p.Mode == List || p.Mode == All && len(p.Deny)+len(p.Inject) > 0
}

// Resolves reports whether a name may be asked for.
func (p Policy) Resolves(name string) bool {
	name = Canonical(name)
	if names(p.Deny, name) {
		return false
	}
	return p.Mode == All || p.Mode == List && (names(p.Allow, name) || slices.ContainsFunc(p.Inject, func(i Injection) bool { return i.Host.matches(name) }))
}

// Verdict is the decision of a policy on a connection.
type Verdict int

// Verdicts.
const (
	Denied Verdict = iota
	ByAddr         // permitted for its address, whatever the name
	ByName         // permitted for its name, provided that the address belongs to it
	ByNone         // permitted because no rule denies it
)

// String returns a word for logs.
func (v Verdict) String() string {
	if v == Denied {
		return "denied"
	}
	return "allowed"
}

// Decide returns the verdict on a connection to an address, and to a name that
// the client sent there; "" if it sent none.
func (p Policy) Decide(name string, to netip.AddrPort) Verdict {
	name = Canonical(name)
	a := to.Addr()
	switch {
	case p.Mode != All && p.Mode != List, contains(p.Deny, a), name != "" && names(p.Deny, name):
		return Denied
	case len(p.Injections(name, to.Port())) > 0:
		return ByName // whatever else permits it: no other address gets the secret
	case p.Mode == All:
		return ByNone
	case contains(p.Allow, a):
		return ByAddr
	case name != "" && names(p.Allow, name):
		return ByName
	}
	return Denied
}

// NeedsNames reports whether a name can make a difference to a connection that
// is permitted without one.
func (p Policy) NeedsNames() bool {
	return len(p.Inject) > 0 || slices.ContainsFunc(p.Deny, func(r Rule) bool { return r.domain != "" })
}

// Networks returns the networks of rules, without those within others.
func Networks(rules []Rule) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range rules {
		if r.prefix.IsValid() {
			all = append(all, r.prefix)
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	var out []netip.Prefix
	for _, p := range all {
		if !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Overlaps(p) }) {
			out = append(out, p)
		}
	}
	return out
}

func contains(rules []Rule, a netip.Addr) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.prefix.IsValid() && r.prefix.Contains(a) })
}

func names(rules []Rule, name string) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.matches(name) })
}

// Canonical returns a name in the form in which names are compared.
func Canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
