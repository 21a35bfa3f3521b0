package firewall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/netdump"
)

// Mark is the bit of a packet's mark by which the table tells the gate that a
// packet may pass. Kubernetes (bits 14, 15), Tailscale (16 to 23) and Docker do
// not use it.
const Mark = 1 << 25

// The gate of a bridge is
//
//	ip rule add priority 0 iif BRIDGE fwmark 0/Mark blackhole
//
// It must come before the rule that looks up the machine's own addresses, which
// the kernel puts at priority 0 too. Rules of one priority are in the order in
// which they were added. So the gate is added, then a second rule for the
// machine's addresses, and then the older one is deleted: there always is one.

// gateLock is the lock of all installations of the machine. It is held for
// milliseconds.
const gateLock = "/run/lock/miren-runtime/gate.lock"

func lockGates() (unlock func(), _ error) {
	if err := os.MkdirAll(filepath.Dir(gateLock), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(gateLock, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", gateLock, err)
	}
	return func() { f.Close() }, nil
}

// ensureGate makes the gate of a bridge, and reports whether it had to.
func ensureGate(bridge string) (made bool, _ error) {
	if gate, local, err := findRules(bridge); err != nil || gate >= 0 && (local < 0 || gate < local) {
		return false, err
	}
	unlock, err := lockGates()
	if err != nil {
		return false, err
	}
	defer unlock()
	for range 5 { // other programs may change the rules meanwhile
		gate, local, err := findRules(bridge)
		switch {
		case err != nil:
			return made, err
		case gate < 0:
			made = true
			err = addRule(gateAction, bridge)
		case local >= 0 && local < gate:
			made = true
			if err = addRule(unix.RTN_UNICAST, ""); err == nil {
				err = delRule(unix.RTN_UNICAST, "")
			}
		default:
			return made, nil
		}
		if err != nil {
			return made, err
		}
	}
	return made, errors.New("another program changes the machine's routing rules all the time")
}

// removeGate removes the gate of a bridge.
func removeGate(bridge string) error {
	unlock, err := lockGates()
	if err != nil {
		return err
	}
	defer unlock()
	for {
		gate, _, err := findRules(bridge)
		if err != nil || gate < 0 {
			return err
		}
		if err := delRule(gateAction, bridge); err != nil {
			return err
		}
	}
}

// gateAction drops packets without an answer.
const gateAction = unix.RTN_BLACKHOLE

// rule is one of the machine's rules of policy routing.
type rule struct {
	action uint8
	table  uint32
	iif    string
	mask   uint32
	other  bool // it has other conditions, or a mark
}

// gateOf reports whether r is the gate of a bridge.
func (r rule) gateOf(bridge string) bool {
	return r == rule{action: gateAction, iif: bridge, mask: Mark}
}

// listRules returns the rules in order.
func listRules() ([]rule, error) {
	messages, err := netdump.List(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_INET))
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWRULE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	rules := make([]rule, 0, len(messages))
	for _, m := range messages {
		header := nl.DeserializeRtMsg(m)
		attributes, err := nl.ParseRouteAttr(m[header.Len():])
		if err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		r := rule{action: header.Type, table: uint32(header.Table), other: header.Flags&netlink.FibRuleInvert != 0}
		for _, a := range attributes {
			switch a.Attr.Type {
			case nl.FRA_TABLE:
				r.table = nl.NativeEndian().Uint32(a.Value)
			case nl.FRA_IIFNAME:
				r.iif = strings.TrimRight(string(a.Value), "\x00")
			case nl.FRA_FWMASK:
				r.mask = nl.NativeEndian().Uint32(a.Value)
			case nl.FRA_PRIORITY, nl.FRA_PROTOCOL, nl.FRA_SUPPRESS_PREFIXLEN, nl.FRA_SUPPRESS_IFGROUP:
			default:
				r.other = true
			}
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// findRules returns the index of the bridge's gate among the rules, and of the first rule that looks up the machine's
// own addresses; -1 for a missing rule.
func findRules(bridge string) (gate, local int, _ error) {
	rules, err := listRules()
	if err != nil {
		return -1, -1, err
	}
	gate = slices.IndexFunc(rules, func(r rule) bool { return r.gateOf(bridge) })
	local = slices.IndexFunc(rules, func(r rule) bool { return r.table == unix.RT_TABLE_LOCAL })
	if local >= 0 && local < gate && (rules[local] != rule{action: unix.RTN_UNICAST, table: unix.RT_TABLE_LOCAL}) {
		return gate, local, errors.New("a rule of something else for table local comes first, and is not ours to move: give it a priority above 0")
	}
	return gate, local, nil
}

// addRule adds a rule of priority 0 behind the existing ones, delRule deletes the first one like it: the gate of a
// bridge, or without one the rule for local addresses.
func addRule(action uint8, bridge string) error {
	// Without NLM_F_EXCL, which would refuse a second one.
	return changeRule(unix.RTM_NEWRULE, unix.NLM_F_CREATE, action, bridge)
}

func delRule(action uint8, bridge string) error {
	err := changeRule(unix.RTM_DELRULE, 0, action, bridge)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func changeRule(message, flags int, action uint8, bridge string) error {
	req := nl.NewNetlinkRequest(message, flags|unix.NLM_F_ACK)
	header := nl.NewRtMsg()
	header.Family, header.Type, header.Scope, header.Protocol = unix.AF_INET, action, unix.RT_SCOPE_UNIVERSE, 0
	if bridge == "" {
		header.Table = unix.RT_TABLE_LOCAL
	} else {
		header.Table = unix.RT_TABLE_UNSPEC
	}
	req.AddData(header)
	req.AddData(nl.NewRtAttr(nl.FRA_PRIORITY, nl.Uint32Attr(0)))
	if bridge != "" {
		req.AddData(nl.NewRtAttr(nl.FRA_IIFNAME, nl.ZeroTerminated(bridge)))
		req.AddData(nl.NewRtAttr(nl.FRA_FWMARK, nl.Uint32Attr(0)))
		req.AddData(nl.NewRtAttr(nl.FRA_FWMASK, nl.Uint32Attr(Mark)))
	}
	if message == unix.RTM_NEWRULE {
		// The kernel's own protocol: systemd-networkd deletes rules of other
		// protocols.
		req.AddData(nl.NewRtAttr(nl.FRA_PROTOCOL, nl.Uint8Attr(unix.RTPROT_KERNEL)))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
