package main

import (
	"bufio"
	"encoding/hex"
	"os"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/agentproto"
)

const stateListen = "0A"

// listening returns the TCP sockets that accept connections.
func listening() []agentproto.Listener {
	var list []agentproto.Listener
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(path)
		if err != nil {
			continue // no IPv6, or no network at all
		}
		s := bufio.NewScanner(f)
		for s.Scan() && len(list) < agentproto.MaxListeners {
			l, ok := parseSocket(s.Text())
			if ok && !slices.Contains(list, l) {
				list = append(list, l)
			}
		}
		f.Close()
	}
	return list
}

// parseSocket reads a line of /proc/net/tcp or tcp6:
//
//	sl local_address remote_address st ...
//
// An address is 32-bit words in the machine's byte order, in hexadecimal.
func parseSocket(line string) (agentproto.Listener, bool) {
	f := strings.Fields(line)
	if len(f) < 4 || f[3] != stateListen {
		return agentproto.Listener{}, false
	}
	host, port, ok := strings.Cut(f[1], ":")
	p, err := strconv.ParseUint(port, 16, 16)
	addr, err2 := hex.DecodeString(host)
	if !ok || err != nil || err2 != nil || len(addr) != 4 && len(addr) != 16 {
		return agentproto.Listener{}, false
	}
	for w := 0; w < len(addr); w += 4 {
		slices.Reverse(addr[w : w+4])
	}
	return agentproto.Listener{Port: p, Addr: string(addr)}, true
}
