package egress

import (
	"net/netip"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// Rule names a network or a domain. Its JSON form is its text.
type Rule struct {
	prefix netip.Prefix // the zero Prefix for a domain
	domain string       // canonical; "" for a network
	below  bool         // the names below domain, and not domain itself
}

const ruleHint = "write a network like 203.0.113.0/24, an address, a name like example.com, or *.example.com for all names below it"

// ParseRule parses a network, an address or a domain; InvalidArgument.
func ParseRule(s string) (Rule, error) {
	bad := func(why string) (Rule, error) {
		return Rule{}, errs.New(errs.InvalidArgument, "%q %s", s, why).WithHint(ruleHint)
	}
	if a, err := netip.ParseAddr(s); err == nil {
		if !a.Is4() {
			return bad("is an IPv6 address, and sandboxes have no IPv6")
		}
		return Rule{prefix: netip.PrefixFrom(a, 32)}, nil
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		switch {
		case strings.Contains(s, "://"):
			return bad("is a URL, not a network or domain")
		case err != nil:
			return bad("is not a network")
		case !p.Addr().Is4():
			return bad("is an IPv6 network, and sandboxes have no IPv6")
		case p.Masked() != p:
			return bad("has bits set behind its prefix; the network is " + p.Masked().String())
		}
		return Rule{prefix: p}, nil
	}
	r := Rule{domain: Canonical(s)}
	r.domain, r.below = strings.CutPrefix(r.domain, "*.")
	if why := checkDomain(r.domain); why != "" {
		return bad(why)
	}
	return r, nil
}

// checkDomain returns why a name is not a domain; "" if it is one.
func checkDomain(name string) string {
	if name == "" || len(name) > 253 {
		return "is not a domain of 1 to 253 bytes"
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		switch {
		case strings.Contains(l, "*"):
			return "has a * that is not its first label"
		case strings.Contains(l, ":"):
			return "has a port; a domain stands for ports 80 and 443"
		case strings.ContainsFunc(l, func(c rune) bool { return c > 127 }):
			return "is not ASCII; write its xn-- form"
		case l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return "is not a domain"
		}
	}
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return "is neither an address nor a domain"
	}
	return ""
}

// String returns the text that ParseRule parses.
func (r Rule) String() string {
	switch {
	case r.prefix.IsValid():
		return r.prefix.String()
	case r.below:
		return "*." + r.domain
	}
	return r.domain
}

// MarshalText implements encoding.TextMarshaler.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rule) UnmarshalText(b []byte) (err error) {
	*r, err = ParseRule(string(b))
	return err
}

// Covers reports whether every name that o matches is one that r matches. A rule
// for a network covers nothing.
func (r Rule) Covers(o Rule) bool {
	if r.domain == "" || o.domain == "" {
		return false
	}
	if r.below {
		return strings.HasSuffix(o.domain, "."+r.domain) || o.below && o.domain == r.domain
	}
	return r == o
}

// Includes reports whether everything that o permits is permitted by r too: names
// below a domain, or addresses of a network.
func (r Rule) Includes(o Rule) bool {
	if r.prefix.IsValid() && o.prefix.IsValid() {
		return r.prefix.Bits() <= o.prefix.Bits() && r.prefix.Contains(o.prefix.Addr())
	}
	return r.Covers(o)
}

// ParseDomain parses a domain, or the names below one; InvalidArgument.
func ParseDomain(s string) (Rule, error) {
	r, err := ParseRule(s)
	if err == nil && r.domain == "" {
		err = errs.New(errs.InvalidArgument, "%q is not a domain", s).
			WithHint("name a host like api.example.com; the certificate of a host is for its name")
	}
	return r, err
}

func (r Rule) matches(name string) bool {
	if r.domain == "" {
		return false
	}
	if r.below {
		return strings.HasSuffix(name, "."+r.domain)
	}
	return name == r.domain
}
