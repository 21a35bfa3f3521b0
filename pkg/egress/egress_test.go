package egress

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func TestRules(t *testing.T) {
	for _, c := range []struct{ in, out, err string }{
		{in: "203.0.113.0/24", out: "203.0.113.0/24"},
		{in: "203.0.113.7", out: "203.0.113.7/32"},
		{in: "0.0.0.0/0", out: "0.0.0.0/0"},
		{in: "Example.COM.", out: "example.com"},
		{in: "*.example.com", out: "*.example.com"},
		{in: "_acme.xn--bcher-kva.example", out: "_acme.xn--bcher-kva.example"},
		{in: "localhost", out: "localhost"},
		{in: "203.0.113.7/24", err: "the network is 203.0.113.0/24"},
		{in: "10.0.0.0/33", err: "is not a network"},
		{in: "fd00::/8", err: "no IPv6"},
		{in: "::1", err: "no IPv6"},
		{in: "::ffff:203.0.113.7", err: "no IPv6"},
		{in: "https://example.com/", err: "is a URL"},
		{in: "example.com:8080", err: "has a port"},
		{in: "www.*.com", err: "not its first label"},
		{in: "*", err: "not its first label"},
		{in: "*.*.com", err: "not its first label"},
		{in: "*.", err: "not its first label"},
		{in: "bücher.example", err: "xn--"},
		{in: "1.2.3", err: "neither an address nor a domain"},
		{in: "1.2.3.4.5", err: "neither an address nor a domain"},
		{in: "a..b", err: "is not a domain"},
		{in: "", err: "is not a domain"},
		{in: "a b.com", err: "is not a domain"},
		{in: strings.Repeat("a.", 127) + "com", err: "253"},
	} {
		r, err := ParseRule(c.in)
		if c.err != "" {
			if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("ParseRule(%q) = %v, %v; want an error with %q", c.in, r, err, c.err)
			}
			continue
		}
		if err != nil || r.String() != c.out {
			t.Errorf("ParseRule(%q) = %v, %v; want %s", c.in, r, err, c.out)
		}
	}
}

func parse(t *testing.T, mode string, allow, deny string) Policy {
	t.Helper()
	p, err := Parse(mode, strings.Fields(allow), strings.Fields(deny))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDecisions(t *testing.T) {
	list := parse(t, "list", "example.com *.example.org 203.0.113.0/24 *.co", "evil.example.org 203.0.113.66 *.bad.example.org")
	all := parse(t, "all", "", "evil.example 198.51.100.0/24")
	for _, c := range []struct {
		policy     Policy
		name, addr string
		want       Verdict
		resolves   bool
	}{
		{list, "example.com", "192.0.2.1", ByName, true},
		{list, "EXAMPLE.com.", "192.0.2.1", ByName, true},
		{list, "www.example.com", "192.0.2.1", Denied, false},
		{list, "notexample.com", "192.0.2.1", Denied, false},
		{list, "example.org", "192.0.2.1", Denied, false},
		{list, "www.example.org", "192.0.2.1", ByName, true},
		{list, "a.b.example.org", "192.0.2.1", ByName, true},
		{list, "xexample.org", "192.0.2.1", Denied, false},
		{list, "example.org.evil.com", "192.0.2.1", Denied, false},
		{list, "evil.example.org", "192.0.2.1", Denied, false},
		{list, "x.bad.example.org", "192.0.2.1", Denied, false},
		{list, "bad.example.org", "192.0.2.1", ByName, true},
		{list, "", "192.0.2.1", Denied, false},
		{list, "", "203.0.113.1", ByAddr, false},
		{list, "other.test", "203.0.113.1", ByAddr, false},
		{list, "evil.example.org", "203.0.113.1", Denied, false},
		{list, "example.com", "203.0.113.66", Denied, true},
		{all, "", "192.0.2.1", ByNone, true},
		{all, "example.com", "192.0.2.1", ByNone, true},
		{all, "evil.example", "192.0.2.1", Denied, false},
		{all, "example.com", "198.51.100.9", Denied, true},
		{Open(), "evil.example", "198.51.100.9", ByNone, true},
		{Closed(), "example.com", "192.0.2.1", Denied, false},
		{Policy{}, "example.com", "192.0.2.1", Denied, false},
	} {
		if got := c.policy.Decide(c.name, netip.AddrPortFrom(netip.MustParseAddr(c.addr), PortHTTPS)); got != c.want {
			t.Errorf("%v: Decide(%q, %s) = %d, want %d", c.policy, c.name, c.addr, got, c.want)
		}
		if got := c.policy.Resolves(c.name); got != c.resolves {
			t.Errorf("%v: Resolves(%q) = %v", c.policy, c.name, got)
		}
	}
}

func injection(t *testing.T, host string) Injection {
	t.Helper()
	r, err := ParseRule(host)
	if err != nil {
		t.Fatal(err)
	}
	return Injection{Host: r, Secret: "proj/key", Header: DefaultHeader, Format: DefaultFormat}
}

// TestInjections: a rule permits its host at port 443, and no other rule than one
// that denies it changes that the address must be the host's.
func TestInjections(t *testing.T) {
	plain := injection(t, "plain.example")
	plain.Plain = true
	list, err := Parse("list", nil, []string{"denied.example", "203.0.113.0/24"},
		injection(t, "api.example"), injection(t, "*.api.example"), plain, injection(t, "denied.example"))
	if err != nil {
		t.Fatal(err)
	}
	all := Policy{Mode: All, Inject: []Injection{injection(t, "api.example")}}
	for _, c := range []struct {
		policy     Policy
		name, to   string
		want       Verdict
		injected   int
		resolves   bool
		terminates bool
	}{
		{list, "API.example.", "192.0.2.1:443", ByName, 1, true, true},
		{list, "a.api.example", "192.0.2.1:443", ByName, 1, true, true},
		{list, "api.example", "192.0.2.1:80", Denied, 0, true, false},
		{list, "api.example", "203.0.113.1:443", Denied, 1, true, true},
		{list, "plain.example", "192.0.2.1:80", ByName, 1, true, false},
		{list, "plain.example", "192.0.2.1:443", ByName, 1, true, true},
		{list, "denied.example", "192.0.2.1:443", Denied, 1, false, true},
		{list, "other.example", "192.0.2.1:443", Denied, 0, false, false},
		{list, "", "192.0.2.1:443", Denied, 0, false, false},
		{all, "api.example", "192.0.2.1:443", ByName, 1, true, true},
		{all, "api.example", "192.0.2.1:80", ByNone, 0, true, false},
		{all, "other.example", "192.0.2.1:443", ByNone, 0, true, false},
	} {
		to := netip.MustParseAddrPort(c.to)
		if got := c.policy.Decide(c.name, to); got != c.want {
			t.Errorf("Decide(%q, %s) = %d, want %d", c.name, to, got, c.want)
		}
		if got := len(c.policy.Injections(c.name, to.Port())); got != c.injected || c.policy.Terminates(c.name, to.Port()) != c.terminates {
			t.Errorf("%d secrets for %q at %s, want %d", got, c.name, to, c.injected)
		}
		if c.name != "" && c.policy.Resolves(c.name) != c.resolves {
			t.Errorf("Resolves(%q) = %v", c.name, !c.resolves)
		}
	}
	if !all.Filtered() || !all.NeedsNames() || Open().NeedsNames() {
		t.Error("the proxy does not see the connections that get a secret")
	}
	// The rule for the name itself comes last, and so replaces the other's header.
	both := Policy{Mode: All, Inject: []Injection{injection(t, "a.api.example"), injection(t, "*.api.example")}}
	if got := both.Injections("a.api.example", PortHTTPS); len(got) != 2 || got[1].Host.String() != "a.api.example" {
		t.Errorf("%v", got)
	}
	for _, c := range []struct{ secret, want string }{{"v", "Bearer v"}, {"", ""}, {"a\nb", ""}, {"a{}b", "Bearer a{}b"}} {
		got, err := injection(t, "api.example").Value(c.secret)
		if got != c.want || (err == nil) != (c.want != "") || err != nil && c.secret != "" && strings.Contains(err.Error(), c.secret) {
			t.Errorf("Value(%q) = %q, %v", c.secret, got, err)
		}
	}
}

func TestInjectionsThatMakeNoSense(t *testing.T) {
	for want, change := range map[string]func(*Policy, *Injection){
		"no rules":         func(p *Policy, _ *Injection) { p.Mode = None },
		"not a domain":     func(_ *Policy, i *Injection) { i.Host, _ = ParseRule("192.0.2.1") },
		"no secret":        func(_ *Policy, i *Injection) { i.Secret = "" },
		"name of a header": func(_ *Policy, i *Injection) { i.Header = "Two Words" },
		"how requests are": func(_ *Policy, i *Injection) { i.Header = "host" },
		"0 times":          func(_ *Policy, i *Injection) { i.Format = "Bearer" },
		"2 times":          func(_ *Policy, i *Injection) { i.Format = "{} {}" },
		"control":          func(_ *Policy, i *Injection) { i.Format = "{}\r\nX: y" },
		"two secrets":      func(p *Policy, i *Injection) { p.Inject = append(p.Inject, *i) },
		"at most 100":      func(p *Policy, i *Injection) { p.Inject = make([]Injection, MaxInjections) },
	} {
		i := injection(t, "api.example")
		p := Policy{Mode: List}
		change(&p, &i)
		p.Inject = append(p.Inject, i)
		if err := p.Validate(); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestPoliciesThatMakeNoSense(t *testing.T) {
	many := strings.Fields(strings.Repeat("example.com ", MaxRules+1))
	for _, c := range []struct {
		mode        string
		allow, deny []string
		want        string
	}{
		{"some", nil, nil, "none of"},
		{"", nil, nil, "none of"},
		{"none", []string{"example.com"}, nil, "no rules"},
		{"all", []string{"example.com"}, nil, "nothing to allow"},
		{"list", nil, []string{"example.com"}, "allows nothing"},
		{"list", []string{"example.com", "bad domain"}, nil, `allow: "bad domain"`},
		{"all", nil, []string{"1.2.3"}, `deny: "1.2.3"`},
		{"list", many, nil, "257"},
	} {
		_, err := Parse(c.mode, c.allow, c.deny)
		if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s %q %q: %v, want %q", c.mode, c.allow, c.deny, err, c.want)
		}
	}
}

func TestPoliciesAsJSON(t *testing.T) {
	for _, p := range []Policy{Open(), Closed(), parse(t, "list", "*.example.com 203.0.113.0/24", "10.0.0.0/8 a.example.com"), {Mode: List, Inject: []Injection{injection(t, "*.example.com")}}} {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back Policy
		if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, p) {
			t.Errorf("%s became %v, %v", b, back, err)
		}
	}
	var p Policy
	if err := json.Unmarshal([]byte(`{"mode":"list","allow":["1.2.3"]}`), &p); err == nil {
		t.Error("a bad rule was accepted")
	}
}

func TestNetworksDoNotOverlap(t *testing.T) {
	p := parse(t, "list", "203.0.113.7 203.0.113.0/24 example.com 203.0.113.0/25 198.51.100.0/24 203.0.113.0/24", "")
	if got := fmt.Sprint(Networks(p.Allow)); got != "[203.0.113.0/24 198.51.100.0/24]" {
		t.Error(got)
	}
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"*.example.com", "203.0.113.0/24", "1.2.3.4", "a.b."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			return
		}
		if again, err := ParseRule(r.String()); err != nil || again != r {
			t.Errorf("%q is %v, whose text is %v, %v", s, r, again, err)
		}
	})
}
