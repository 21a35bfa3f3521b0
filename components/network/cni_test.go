package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"

	"miren.dev/runtime/components/network/cni"
	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/private"
)

// site is the network of a site that brings its own CNI configuration list.
type site struct {
	dir     string // of host-local
	plugins string
	config  Config
}

// newSite has the stock plugin bridge and more, such as `{"type": "portmap"}`.
func newSite(t *testing.T, more ...string) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{dir: filepath.Join(dir, "addresses"), plugins: filepath.Join(checkout.Toolchain(t, "cni/bridge", "cni/host-local", "cni/portmap"), "cni")}
	bridge := fmt.Sprintf(`{"type": "bridge", "bridge": "site0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
		"ipam": {"type": "host-local", "dataDir": %q, "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "10.77.0.0/24"}]]}}`, s.dir)
	s.config.ConfList = filepath.Join(dir, "site.conflist")
	s.config.PluginDirs = []string{s.plugins, dir}
	s.write(t, fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "site", "plugins": [%s]}`, strings.Join(append([]string{bridge}, more...), ", ")))
	return s
}

func (s *site) write(t *testing.T, list string) {
	t.Helper()
	if err := os.WriteFile(s.config.ConfList, []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
}

// plugin adds a plugin that is a shell script.
func (s *site) plugin(t *testing.T, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(s.config.ConfList), name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// taken returns the addresses that host-local has given to containers.
func (s *site) taken(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, "*", "10.77.*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// empty fails the test if something of a sandbox is left.
func (s *site) empty(t *testing.T) {
	t.Helper()
	if left := s.taken(t); len(left) > 0 {
		t.Errorf("addresses left: %q", left)
	}
	links, err := netdump.Links()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().MasterIndex != 0 {
			t.Errorf("interface left: %s", l.Attrs().Name)
		}
	}
}

// forwarded lets packets of the site's bridge and answers to it through, as a site does.
func forwarded(t *testing.T) {
	t.Helper()
	if err := sysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
}

func TestSitesConfigurationList(t *testing.T) {
	if !private.Run(t) {
		return
	}
	s := newSite(t)
	m := startWith(t, s.config)
	newInternet(t)
	stop := m.runsUntil(t)
	forwarded(t)
	open, closed := attachWith(t, m, "open", egress.Open()), attachWith(t, m, "closed", egress.Closed())
	listed := attachWith(t, m, "listed", policy(t, "list", "good.example 192.0.2.0/24", ""))
	for _, at := range []Attachment{open, closed, listed} {
		if !netip.MustParsePrefix("10.77.0.0/24").Contains(at.Address) {
			t.Fatalf("address %s", at.Address)
		}
		if err := reach(t, machine, listenInside(t, at, 9000)); err != nil {
			t.Errorf("the machine does not reach %s: %v", at.Address, err)
		}
	}
	if got, err := m.Get("open"); err != nil || got != open {
		t.Errorf("Get = %v, %v, want %v", got, err, open)
	}

	// Rules that are enforced by address.
	good, other := netip.MustParseAddrPort("203.0.113.80:443"), netip.MustParseAddrPort("203.0.113.82:8080")
	inNet := netip.MustParseAddrPort("192.0.2.10:8080")
	if err := errors.Join(fetch(t, open.NetNS, "good.example", good, later), echo(t, open.NetNS, other, later)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(fetch(t, listed.NetNS, "good.example", good, later), echo(t, listed.NetNS, inNet, later)); err != nil {
		t.Error(err)
	}
	if _, err := resolve(t, listed.NetNS, "good.example", netip.MustParseAddrPort("203.0.113.80:53"), dnsmessage.TypeA, later); err != nil {
		t.Error(err)
	}
	outOfReach(t, listed.NetNS, other)
	if fetch(t, listed.NetNS, "other.example", netip.MustParseAddrPort("203.0.113.82:443"), soon) == nil {
		t.Error("a name that is not listed is in reach")
	}
	for _, to := range []netip.AddrPort{good, other, inNet} {
		outOfReach(t, closed.NetNS, to)
	}
	for _, private := range []string{"10.98.0.9:8080", "169.254.169.254:8080", "198.51.100.1:8080"} {
		outOfReach(t, open.NetNS, netip.MustParseAddrPort(private))
	}
	setPolicy(t, m, "open", egress.Closed())
	outOfReach(t, open.NetNS, other)

	// A server that is restarted, also with another list, knows how each was connected.
	stop()
	other2 := m.cfg
	other2.ConfList = ""
	again := New(other2)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	outOfReach(t, closed.NetNS, other)
	for _, id := range []string{"open", "closed", "listed"} {
		for range 2 {
			if err := again.Detach(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.empty(t)
	m.leases = again.leases // for the clean-up
}

// listOfGuide returns the list of a site in docs/network.md, whose plugin host-local
// keeps its addresses with the test, and with another port in place of 8080, at which
// the machine itself listens in tests.
func listOfGuide(t *testing.T, more string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/network.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), `"name": "runtime"`) // the first list is another one
	_, rest, _ = strings.Cut(rest, "```json\n")
	list, _, _ := strings.Cut(rest, "```")
	for _, change := range [][2]string{{`"type": "host-local", `, `"type": "host-local", ` + more + ", "}, {`"hostPort": 8080`, `"hostPort": 18080`}} {
		if !strings.Contains(list, change[0]) {
			t.Fatalf("the guide has no list with %s: %s", change[0], list)
		}
		list = strings.Replace(list, change[0], change[1], 1)
	}
	return list
}

// TestPublishedPortOfASite publishes a port by the list of the guide.
func TestPublishedPortOfASite(t *testing.T) {
	if !private.Run(t) {
		return
	}
	s := newSite(t)
	s.write(t, listOfGuide(t, `"dataDir": `+strconv.Quote(s.dir)))
	m := startWith(t, s.config)
	w := newInternet(t)
	forwarded(t)
	a := attachWith(t, m, "a", egress.Closed())
	listenInside(t, a, 80)
	if err := inside(t, w.netns, func() error { return dial(netip.AddrPortFrom(w.gateway, 18080), later) }); err != nil {
		t.Errorf("the published port is not reached from another machine: %v", err)
	}
	if err := m.Detach(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	s.empty(t)
	if inside(t, w.netns, func() error { return dial(netip.AddrPortFrom(w.gateway, 18080), soon) }) == nil {
		t.Error("the port is published after the end")
	}
}

// TestInterruptedCommands: wherever a server ended, the next one removes the objects of its plugins.
func TestInterruptedCommands(t *testing.T) {
	if !private.Run(t) {
		return
	}
	s := newSite(t, `{"type": "second"}`)
	s.plugin(t, "second", `if [ "$CNI_COMMAND" = ADD ]; then echo "it is broken" >&2; echo '{"cniVersion": "1.1.0", "code": 102, "msg": "no luck", "details": "none"}'; exit 1; fi`)
	m := startWith(t, s.config)
	_, err := m.Attach(t.Context(), "a", Options{Bridge: true, Policy: egress.Open()})
	if err == nil || !errs.Is(err, errs.Unavailable) {
		t.Fatalf("a plugin that fails: %v", err)
	}
	for _, want := range []string{"second: no luck", "none", "it wrote: it is broken"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	s.empty(t)
	if ids, err := m.List(); err != nil || len(ids) > 0 {
		t.Errorf("left: %q, %v", ids, err)
	}

	// The server is killed while the second plugin runs.
	if err := newNetNS(m.netNS("b"), raiseLoopback); err != nil {
		t.Fatal(err)
	}
	if err := m.begin("b", egress.Open()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.cni.Add(t.Context(), cni.Args{ID: "b", NetNS: m.netNS("b")}); err == nil {
		t.Fatal("the second plugin did not fail")
	}
	if n := len(s.taken(t)); n != 1 {
		t.Fatalf("%d addresses", n)
	}
	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ids, err := again.List(); err != nil || len(ids) != 1 {
		t.Errorf("List = %q, %v", ids, err)
	}
	if err := again.Detach(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	s.empty(t)

	// The machine is restarted: files below /run are gone, and those that plugins keep elsewhere are not.
	s.plugin(t, "second", `if [ "$CNI_COMMAND" = ADD ]; then sed 's/.*"prevResult"://; s/,"type":.*$//'; fi`)
	if _, err := again.Attach(t.Context(), "c", Options{Bridge: true, Policy: egress.Open()}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(removeNetNS(again.netNS("c")), os.RemoveAll(again.leaseDir())); err != nil {
		t.Fatal(err)
	}
	rebooted := New(m.cfg)
	if err := rebooted.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := s.taken(t); len(left) > 0 {
		t.Errorf("addresses left: %q", left)
	}
	m.leases = nil // for the clean-up
}

// TestCheck: the command CHECK reports missing objects, for our plugin and the stock one.
func TestCheck(t *testing.T) {
	if !private.Run(t) {
		return
	}
	for name, config := range map[string]Config{"ours": {}, "stock": newSite(t).config} {
		t.Run(name, func(t *testing.T) {
			m := startWith(t, config)
			a := attachWith(t, m, "a", egress.Open())
			args := cni.Args{ID: "a", NetNS: a.NetNS}
			if err := m.cni.Check(t.Context(), args); err != nil {
				t.Errorf("right after ADD: %v", err)
			}
			err := inside(t, a.NetNS, func() error { // as runsc does
				l, err := netlink.LinkByName(cni.Interface)
				if err != nil {
					return err
				}
				has, err := netlink.AddrList(l, netlink.FAMILY_V4)
				if err != nil {
					return err
				}
				return netlink.AddrDel(l, &has[0])
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.cni.Check(t.Context(), args); err == nil {
				t.Error("CHECK does not see that the address is gone")
			}
		})
	}
}

func TestConfigurationListsThatMakeNoSense(t *testing.T) {
	need.Root(t)
	for _, c := range []struct{ list, want string }{
		{`{`, "error parsing"},
		{`{"cniVersion": "1.1.0", "plugins": [{"type": "runtime"}]}`, "no name"},
		{`{"cniVersion": "1.1.0", "name": "x"}`, "no plugins"},
		{`{"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "nonesuch"}]}`, "plugin nonesuch is in none of"},
		{`{"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "tuning"}, {"type": "runtime"}]}`, "must be the first"},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "x.conflist")
		if err := errors.Join(os.WriteFile(file, []byte(c.list), 0o644), os.WriteFile(filepath.Join(dir, "tuning"), nil, 0o755)); err != nil {
			t.Fatal(err)
		}
		_, err := cni.Load(cni.Config{File: file, Name: "rt", PluginDirs: []string{dir}, Dir: dir})
		if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.list, err, c.want)
		}
	}
	if _, err := cni.Load(cni.Config{File: "/nonesuch"}); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a file that is missing: %v", err)
	}
}
