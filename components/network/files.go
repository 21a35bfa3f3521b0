package network

import (
	"fmt"
	"net/netip"
)

// Files are the files of /etc with a sandbox's name, address and name servers.
type Files struct {
	ResolvConf []byte
	Hosts      []byte
	Hostname   []byte
}

// Files makes the files of a sandbox. The address is the zero Addr when it has none.
func (m *Manager) Files(hostname string, address netip.Addr) Files {
	f := Files{Hostname: []byte(hostname + "\n")}
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if address.IsValid() {
		hosts += fmt.Sprintf("%s\t%s\n", address, hostname)
		m.mu.Lock()
		f.ResolvConf = m.resolver.Conf()
		m.mu.Unlock()
	} else {
		hosts += "127.0.0.1\t" + hostname + "\n"
	}
	f.Hosts = []byte(hosts)
	return f
}
