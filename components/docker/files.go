package docker

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/network/resolver"
	"miren.dev/runtime/pkg/errs"
)

// etcFiles are the files of /etc that say where a sandbox is. The engine's own ones would be files of the host that the
// sandbox can write without a bound.
var etcFiles = []string{"hosts", "hostname", "resolv.conf"}

// writeEtc writes them in place, so that a running sandbox sees the change.
func (d *Driver) writeEtc(s execution.Spec, address netip.Addr) error {
	name := hostname(s)
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if address.IsValid() {
		hosts += fmt.Sprintf("%s\t%s\n", address, name)
	} else {
		hosts += "127.0.0.1\t" + name + "\n"
	}
	content := map[string]string{"hosts": hosts, "hostname": name + "\n"}
	if s.Network == execution.NetworkBridge {
		content["resolv.conf"] = nameServers()
	}
	for _, f := range etcFiles {
		if err := writeInPlace(d.dir("sandboxes", s.ID, f), content[f]); err != nil {
			return errs.New(errs.FailedPrecondition, "write /etc/%s: %w", f, err)
		}
	}
	return nil
}

// nameServers is a resolv.conf with the machine's name servers. gVisor does not reach the engine's own, which is on the
// loopback address.
func nameServers() string {
	var out strings.Builder
	for _, file := range resolver.Files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != "nameserver" {
				continue
			}
			if a, err := netip.ParseAddr(f[1]); err == nil && !a.IsLoopback() {
				fmt.Fprintf(&out, "nameserver %s\n", a)
			}
		}
		if out.Len() > 0 {
			break
		}
	}
	return out.String()
}

func writeInPlace(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err = f.WriteString(content); err == nil {
		err = f.Chmod(0o644) // whatever the server's umask is
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

func dirNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, errs.New(errs.Unavailable, "list %s: %w", dir, err)
	}
	var names []string
	for _, e := range entries {
		if e.Type() == fs.ModeDir {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
