package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// TestInjectedSecrets: a program in a sandbox uses an API whose key it does not
// have, before and after a pause, in a fork and after a crash of the server, until
// the key is deleted. The API is on another machine, a network namespace.
func TestInjectedSecrets(t *testing.T) {
	if !private.Inside() {
		// Here a network exists, for the image.
		shared.r(t, "", "sandbox", "run", "--image", "debian", "--", "true")
	}
	if !private.Run(t) {
		return
	}
	const value, host = "sk-the-value-of-the-key", "example.com" // the certificate of httptest is for this name
	api := &httptest.Server{Listener: elsewhere(t, "203.0.113.80:443"), EnableHTTP2: true, Config: &http.Server{
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "%x", sha256.Sum256([]byte(r.Header.Get("Authorization"))))
		}),
	}}
	api.StartTLS()
	t.Cleanup(api.Close)
	answerNames(t, host, "203.0.113.80")
	bundle, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err)
	}
	bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})...)
	file := filepath.Join(t.TempDir(), "bundle.crt")
	if err := os.WriteFile(file, bundle, 0o644); err != nil {
		t.Fatal(err)
	}
	s := own(t, "secrets", "--ca-bundle", file)
	in, err := instance.Find(s.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}

	t.Setenv("API_KEY", value)
	s.r(t, "", "secret", "set", "api", "--from-env", "API_KEY", "--hosts", host)
	if res := s.try(t, "", "sandbox", "run", "--image", "debian", "--inject-secret", "other", "--host", host, "--", "true"); res.Code == 0 || !strings.Contains(res.Stderr, "other") {
		t.Errorf("a secret that does not exist: %s", res)
	}
	if res := s.try(t, "", "sandbox", "run", "--image", "debian", "--inject-secret", "api", "--host", "evil."+host, "--", "true"); res.Code == 0 || !strings.Contains(res.Stderr, "not for evil."+host) {
		t.Errorf("a host that the secret is not for: %s", res)
	}
	sid := s.run(t, "--egress", "list", "--inject-secret", "api", "--host", host, "--", "sleep", "600")
	request := "printf 'GET / HTTP/1.1\\r\\nHost: " + host + "\\r\\nAuthorization: Bearer placeholder\\r\\nConnection: close\\r\\n\\r\\n' | " +
		"timeout 20 openssl s_client -quiet -verify_return_error -connect " + host + ":443 -servername " + host + " 2>&1"
	ask := func(sid string) string {
		t.Helper()
		return s.try(t, "", "sandbox", "exec", sid, "--", "sh", "-c", request).Stdout
	}
	want := fmt.Sprintf("%x", sha256.Sum256([]byte("Bearer "+value)))
	contains(t, "the first request", ask(sid), "200 OK", want)
	hidden := func(sid string) {
		t.Helper()
		out := s.r(t, "", "sandbox", "exec", sid, "--", "sh", "-c", "env; cat /proc/*/environ /proc/*/cmdline; grep -rsl sk-the-value-of /etc /run /tmp /root /var /home; true")
		if strings.Contains(out, value) || strings.Contains(out, "/etc/") {
			t.Errorf("the sandbox has the secret: %s", out)
		}
	}
	hidden(sid)

	s.r(t, "", "sandbox", "pause", sid)
	noFileHas(t, value, in.State(), in.RunDir)
	contains(t, "after a pause", ask(sid), want)
	fork := strings.TrimSpace(s.r(t, "", "sandbox", "fork", sid))
	contains(t, "in a fork", ask(fork), want)
	hidden(fork)
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	contains(t, "after a crash of the server", ask(sid), want)

	later := s.run(t, "--", "sleep", "600")
	s.r(t, "", "sandbox", "egress", "set", later, "--inject-secret", "api", "--host", host)
	contains(t, "with a secret set while it runs", ask(later), want)
	s.r(t, "", "sandbox", "egress", "set", later, "--egress", "all")
	if out := ask(later); strings.Contains(out, want) || !strings.Contains(out, "200 OK") {
		t.Errorf("without the rule: %s", out)
	}

	s.r(t, "", "secret", "set", "api", "--from-env", "API_KEY", "--hosts", "other."+host)
	contains(t, "when the secret is for another host", ask(sid), "403 Forbidden", "may not be sent")
	s.r(t, "", "secret", "delete", "api")
	for _, sid := range []string{sid, fork} {
		contains(t, "after the deletion of the secret", ask(sid), "403 Forbidden", "the secret api")
	}
	contains(t, "the log", s.r(t, "", "sandbox", "egress", "log", sid), "https", host, "api", "refused")
	for _, args := range [][]string{{"sandbox", "show", sid}, {"sandbox", "egress", "log", sid}, {"audit", "list"}, {"entity", "get", "sandbox", sid}} {
		if res := s.try(t, "", append(args, "--json")...); res.Code != 0 || strings.Contains(res.String(), value) {
			t.Errorf("r %q has the secret: %s", args, res)
		}
	}
	for _, sid := range []string{sid, fork, later} {
		s.r(t, "", "sandbox", "delete", sid)
	}
	wait.NoError(t, "the log of a sandbox that is gone", func() error {
		out := s.r(t, "", "sandbox", "egress", "log", sid, "--all")
		if !strings.Contains(out, "https") || !strings.Contains(out, "api") || strings.Contains(out, value) {
			return errors.New(out)
		}
		return nil
	}, wait.Within(converge))
	noFileHas(t, value, in.State(), in.RunDir)
}

// noFileHas fails if a file below one of the directories has a text.
func noFileHas(t *testing.T, text string, dirs ...string) {
	t.Helper()
	files := 0
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && slices.Contains([]string{"containerd", "buildkit", "netns"}, d.Name()) { // images, and no files of ours
				return fs.SkipDir
			}
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if files++; bytes.Contains(b, []byte(text)) {
				t.Errorf("%s has the secret", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if files == 0 {
		t.Errorf("no files in %q", dirs)
	}
}

// elsewhere listens at a public address of another machine, to which this one has its default route.
func elsewhere(t *testing.T, at string) net.Listener {
	t.Helper()
	type there struct {
		netns    int
		listener net.Listener
		err      error
	}
	made, configured, listens := make(chan there), make(chan bool), make(chan there)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function
		var x there
		if x.err = unix.Unshare(unix.CLONE_NEWNET); x.err == nil {
			x.netns, x.err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		made <- x
		if <-configured {
			x.listener, x.err = net.Listen("tcp4", at)
			listens <- x
		}
	}()
	x := <-made
	if x.err != nil {
		t.Fatal(x.err)
	}
	err := connectTo(x.netns, at)
	configured <- err == nil
	if err != nil {
		t.Fatal(err)
	}
	if x = <-listens; x.err != nil {
		t.Fatal(x.err)
	}
	return x.listener
}

// connectTo connects this network to another, which has an address.
func connectTo(fd int, at string) error {
	a, err := net.ResolveTCPAddr("tcp4", at)
	if err != nil {
		return err
	}
	other, err := netlink.NewHandleAt(netns.NsHandle(fd), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer other.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "here"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "there", PeerNamespace: netlink.NsFd(fd)}); err != nil {
		return err
	}
	here, err := netlink.LinkByName("here")
	if err != nil {
		return err
	}
	peer, err := other.LinkByName("there")
	if err != nil {
		return err
	}
	near, far := net.IPv4(198, 51, 100, 1), net.IPv4(198, 51, 100, 2)
	mask := func(ip net.IP, bits int) *netlink.Addr {
		return &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, 32)}}
	}
	return errors.Join(
		netlink.AddrAdd(here, mask(near, 30)), netlink.LinkSetUp(here), netlink.RouteAdd(&netlink.Route{LinkIndex: here.Attrs().Index, Gw: far}),
		other.AddrAdd(peer, mask(far, 30)), other.AddrAdd(peer, mask(a.IP, 32)), other.LinkSetUp(peer))
}

// answerNames is the name server of this machine, which knows one name.
func answerNames(t *testing.T, name, address string) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH) })
	c, err := net.ListenPacket("udp4", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	a := [4]byte(net.ParseIP(address).To4())
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			switch {
			case q.Name.String() != name+".":
				m.RCode = dnsmessage.RCodeNameError
			case q.Type == dnsmessage.TypeA:
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 60}, Body: &dnsmessage.AResource{A: a}}}
			}
			if b, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(b, from)
			}
		}
	}()
}
