package hostcheck

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"

	"miren.dev/runtime/cli/doctor"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/servers/server"
)

// maxBehind is how far the clock may be behind the newest file of the installation.
const maxBehind = time.Minute

// checkClock finds a clock that went back: certificates and leases depend on it.
func checkClock(_ context.Context, h *doctor.Host) doctor.Finding {
	now := time.Now()
	for _, name := range []string{"server.lock", "server.yaml", "node-id", "logs"} {
		st, err := os.Stat(filepath.Join(h.Config.StateDir, name))
		if err == nil && st.ModTime().After(now.Add(maxBehind)) {
			return failure("set the clock, and keep it by NTP (systemd-timesyncd, chrony)", "it is %s, before %s was written (%s)",
				now.UTC().Format(time.RFC3339), st.Name(), st.ModTime().UTC().Format(time.RFC3339))
		}
	}
	return good("%s", now.UTC().Format(time.RFC3339))
}

// dialTimeout bounds a connection to a store.
const dialTimeout = 3 * time.Second

// checkStore connects to the hosts of a configured store.
func checkStore(ctx context.Context, h *doctor.Host) doctor.Finding {
	text := h.Config.Store.URL
	if text == "" {
		return good("the private PostgreSQL")
	}
	scheme, rest, _ := strings.Cut(text, "://")
	if scheme == "sqlite" {
		dir := filepath.Dir(rest)
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return failure("make the directory, or correct store.url", "there is no directory %s", dir)
		}
		return good("SQLite in %s", dir)
	}
	hosts, _, _ := strings.Cut(rest, "/")
	hosts = hosts[strings.LastIndexByte(hosts, '@')+1:]
	if u, err := url.Parse(text); err == nil && hosts == "" {
		if hosts = u.Query().Get("host"); filepath.IsAbs(hosts) {
			hosts = ""
		}
	}
	if hosts == "" {
		return good("by a unix socket")
	}
	port := map[string]string{"etcd": "2379"}[scheme]
	if port == "" {
		port = "5432"
	}
	var failed []string
	all := strings.Split(hosts, ",")
	for _, host := range all {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(host, port)
		}
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
		cancel()
		if err != nil {
			failed = append(failed, err.Error())
			continue
		}
		_ = c.Close() // nothing was sent
	}
	const advice = "start the database, or correct store.url and the network between"
	switch {
	case len(failed) == len(all):
		return failure(advice, "the store cannot be reached: %s", strings.Join(failed, "; "))
	case len(failed) > 0:
		return warning(advice, "a part of the store cannot be reached: %s", strings.Join(failed, "; "))
	}
	return good("%s answers", hosts)
}

func checkRestore(_ context.Context, h *doctor.Host) doctor.Finding {
	if err := server.Restored(h.Config.StateDir); err != nil {
		return failure(errs.HintOf(err), "%v", err)
	}
	return good("no restore was interrupted")
}

// expiresSoon is how long before the end of a certificate there is a warning.
const expiresSoon = 14 * 24 * time.Hour

// checkCertificates looks at the certificates of the installation itself.
func checkCertificates(_ context.Context, h *doctor.Host) doctor.Finding {
	n := 0
	var soon string
	for _, dir := range []string{"pki", "."} {
		files, _ := filepath.Glob(filepath.Join(h.Config.StateDir, dir, "*")) // the pattern is valid
		for _, f := range files {
			st, err := os.Stat(f)
			if err != nil || !st.Mode().IsRegular() || st.Size() > 1<<20 {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil || !bytes.Contains(b, []byte("-----BEGIN CERTIFICATE-----")) {
				continue
			}
			for {
				var block *pem.Block
				if block, b = pem.Decode(b); block == nil {
					break
				}
				c, err := x509.ParseCertificate(block.Bytes)
				if block.Type != "CERTIFICATE" || err != nil {
					continue
				}
				end := c.NotAfter.UTC().Format(time.DateOnly)
				switch left := time.Until(c.NotAfter); {
				case left < 0:
					return failure("check the clock; remove the file, and start the server again: it makes another one, and clients need new certificates (r auth generate)",
						"%s (%s) expired on %s", f, c.Subject.CommonName, end)
				case left < expiresSoon:
					soon = fmt.Sprintf("%s (%s) expires on %s", f, c.Subject.CommonName, end)
				}
				n++
			}
		}
	}
	if soon != "" {
		return warning("plan its replacement", "%s", soon)
	}
	return good("%d valid", n)
}

// checkLeftovers finds what an installation of which no process runs has left on the
// machine.
func checkLeftovers(_ context.Context, h *doctor.Host) doctor.Finding {
	in, err := instance.Find(h.Config.StateDir, h.Config.RunDir)
	if errs.Is(err, errs.NotFound) {
		return good("there is no installation in %s", h.Config.StateDir)
	}
	if err != nil {
		return failure(errs.HintOf(err), "%v", err)
	}
	if pids := processes(in); len(pids) > 0 {
		if !h.Running {
			return warning("`r server start` adopts them, and `r server stop` ends them", "no server answers, but %d processes of %s run", len(pids), in.Name(""))
		}
		return good("none: the server removes them")
	}
	if left := leftovers(in); len(left) > 0 {
		return failure("", "nothing of %s runs, and it left %s", in.Name(""), strings.Join(left[:min(len(left), 8)], ", "))
	}
	return good("none")
}

// fixLeftovers removes them as r server stop does.
func fixLeftovers(ctx context.Context, h *doctor.Host) error {
	return server.Teardown(ctx, h.Config, slog.New(slog.DiscardHandler))
}

// processes returns the processes that are in a control group of the installation,
// or have a path of it in their command line.
func processes(in *instance.Instance) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		groups, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup")) // it may end meanwhile
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if bytes.Contains(groups, []byte(in.Name(""))) || bytes.Contains(line, []byte(in.RunDir+"/")) || bytes.Contains(line, []byte(in.State("pg")+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// leftovers lists what the installation has made outside its directories.
func leftovers(in *instance.Instance) (left []string) {
	name := in.Name("")
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && (strings.HasPrefix(f[4], in.RunDir+"/") || strings.Contains(f[4], "/"+name)) {
			left = append(left, "the mount "+f[4])
		}
	}
	namespaces, _ := filepath.Glob("/run/netns/" + name + "*") // the pattern is valid
	for _, n := range namespaces {
		left = append(left, "the network namespace "+filepath.Base(n))
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		if strings.HasPrefix(l.Name, "rt"+in.ID) {
			left = append(left, "the interface "+l.Name)
		}
	}
	if c, err := nftables.New(); err == nil {
		tables, _ := c.ListTables()
		for _, t := range tables {
			if strings.HasPrefix(t.Name, name) {
				left = append(left, "the firewall table "+t.Name)
			}
		}
	}
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir // it is gone
		case !d.IsDir():
			return nil
		case strings.HasPrefix(d.Name(), name):
			left = append(left, "the control group "+path)
			return fs.SkipDir
		case strings.Count(path, "/") >= 5:
			return fs.SkipDir
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		left = append(left, "perhaps control groups: "+err.Error())
	}
	slices.Sort(left)
	return left
}
