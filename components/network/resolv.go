package network

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// Where the machine's name servers are found. The second is that of
// systemd-resolved with the real servers behind its loopback address.
var resolvFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// publicServers are used when the machine knows none that a sandbox could reach.
var publicServers = []string{"1.1.1.1", "8.8.8.8"}

// Files are the files of /etc that say who and where a sandbox is.
type Files struct {
	ResolvConf []byte
	Hosts      []byte
	Hostname   []byte
}

// FilesFor makes the files of a sandbox. The address is the zero Addr when it has none.
func FilesFor(hostname string, address netip.Addr) Files {
	f := Files{Hostname: []byte(hostname + "\n")}
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if address.IsValid() {
		hosts += fmt.Sprintf("%s\t%s\n", address, hostname)
		for _, path := range resolvFiles {
			b, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			if conf, ok := reachable(b); ok {
				f.ResolvConf = conf
				break
			}
		}
		if f.ResolvConf == nil {
			f.ResolvConf = []byte("nameserver " + strings.Join(publicServers, "\nnameserver ") + "\n")
		}
	} else {
		hosts += "127.0.0.1\t" + hostname + "\n"
	}
	f.Hosts = []byte(hosts)
	return f
}

// reachable is a resolv.conf without the servers that only the machine itself
// reaches. It says whether there is another.
func reachable(conf []byte) ([]byte, bool) {
	var out bytes.Buffer
	found := false
	lines := bufio.NewScanner(bytes.NewReader(conf))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			a, err := netip.ParseAddr(fields[1])
			if err != nil || !a.Is4() || a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
				continue
			}
			found = true
		case "search", "domain", "options":
		default:
			continue
		}
		fmt.Fprintln(&out, strings.Join(fields, " "))
	}
	return out.Bytes(), found
}

// nameservers are the IPv4 name servers of the machine that are elsewhere.
func nameservers() []netip.Addr {
	var out []netip.Addr
	for _, path := range resolvFiles {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		conf, _ := reachable(b)
		for line := range strings.Lines(string(conf)) {
			if s, ok := strings.CutPrefix(line, "nameserver "); ok {
				if a, err := netip.ParseAddr(strings.TrimSpace(s)); err == nil {
					out = append(out, a)
				}
			}
		}
	}
	return out
}
