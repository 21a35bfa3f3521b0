package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/sink/target"
)

// checks are the rules that a pattern cannot express, by key.
var checks = map[string]func(string) error{
	"ca_bundle":                       checkCABundle,
	"toolchain_dir":                   checkAbsolute,
	"kubernetes.kubeconfig":           checkAbsolute,
	"kubernetes.registry_credentials": checkAbsolute,
	"kubernetes.registry_ca_file":     checkAbsolute,
	"rpc.address":                     CheckListen,
	"rpc.hosts":                       checkHost,
	"network.pools":                   checkNetwork,
	"network.allow":                   checkNetwork,
	"network.conflist":                checkAbsolute,
	"network.plugin_dirs":             checkAbsolute,
	"ingress.http_address":            CheckListen,
	"ingress.https_address":           CheckListen,
	"ingress.local_domains":           checkHost,
	"ingress.trusted_proxies":         checkAnyNetwork,
	"acme.ca_file":                    checkAbsolute,
	"acme.challenges":                 checkChallenge,
	"acme.domains":                    checkHost,
	"metrics.address":                 CheckListen,
	"logs.sinks":                      target.Check,
	"metrics.sinks":                   target.CheckMetrics,
	"webhooks.allow":                  checkAnyNetwork,
	"build.refresh_window":            checkWindow,
}

func checkWindow(s string) error {
	if from, to, _ := strings.Cut(s, "-"); s != "" && from == to {
		return fmt.Errorf("%q ends when it begins; leave it empty for the whole day", s)
	}
	return nil
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

func checkChallenge(s string) error {
	if s == "http-01" || s == "tls-alpn-01" || s == "dns-01" {
		return nil
	}
	return fmt.Errorf("%q is none of http-01, tls-alpn-01 and dns-01", s)
}

// CheckListen accepts host:port with a host that is empty, an address or a name.
func CheckListen(s string) error {
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
