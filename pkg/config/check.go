package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

// checks are the rules that a pattern cannot express, by key. Lists are checked
// element by element. Empty strings are not checked.
var checks = map[string]func(string) error{
	"ca_bundle":             checkCABundle,
	"toolchain_dir":         checkAbsolute,
	"rpc.address":           checkListen,
	"rpc.hosts":             checkHost,
	"network.pools":         checkNetwork,
	"network.allow":         checkNetwork,
	"network.conflist":      checkAbsolute,
	"network.plugin_dirs":   checkAbsolute,
	"ingress.http_address":  checkListen,
	"ingress.local_domains": checkHost,
	"metrics.address":       checkListen,
	"webhooks.allow":        checkAnyNetwork,
}

func checkAbsolute(s string) error {
	if !filepath.IsAbs(s) {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

func checkCABundle(s string) error {
	if s == "auto" || s == "none" || filepath.IsAbs(s) {
		return nil
	}
	return fmt.Errorf("%q is neither auto, none nor an absolute path", s)
}

// checkListen accepts host:port with a host that is empty, an address or a name.
func checkListen(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is not host:port", s)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: the port is not a number up to 65535", s)
	}
	if host == "" {
		return nil
	}
	return checkHost(host)
}

func checkHost(s string) error {
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return fmt.Errorf("%q is not a host name or address", s)
		}
	}
	return nil
}

// checkAnyNetwork accepts networks of IPv4 and IPv6.
func checkAnyNetwork(s string) error {
	if p, err := netip.ParsePrefix(s); err != nil || p.Masked() != p {
		return fmt.Errorf("%q is not a network (10.1.0.0/16, fd00::/64), with only zeros behind the prefix", s)
	}
	return nil
}

func checkNetwork(s string) error {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() || p.Masked() != p {
		return fmt.Errorf("%q is not an IPv4 network like 10.40.0.0/16", s)
	}
	return nil
}

// sections are the mappings of the file, from the keys.
func sections() []string {
	var all []string
	for i := range Keys {
		if s, _, ok := strings.Cut(Keys[i].Path, "."); ok && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// unknownVariables reports variables that begin like those of a section but
// belong to no key. Other RUNTIME_ variables belong to other programs.
func unknownVariables(env map[string]string) []error {
	known := make([]string, len(Keys))
	for i := range Keys {
		known[i] = Keys[i].Env()
	}
	var names []string
	for name := range env {
		inSection := slices.ContainsFunc(sections(), func(s string) bool { return strings.HasPrefix(name, "RUNTIME_"+strings.ToUpper(s)+"_") })
		if inSection && !slices.Contains(known, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var all []error
	for _, name := range names {
		hint := ""
		if s := suggest.Nearest(name, known); s != "" {
			hint = "; did you mean " + s + "?"
		}
		all = append(all, errs.New(errs.InvalidArgument, "environment: unknown variable %s%s", name, hint))
	}
	return all
}
