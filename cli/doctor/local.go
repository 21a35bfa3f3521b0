package doctor

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/schema"
)

// checks of the machine, in the order in which they are shown.
var checks = []check{
	{"user", checkRoot},
	{"platform", checkPlatform},
	{"kernel", checkKernel},
	{"filesystems", checkFilesystems},
	{"network", checkNetwork},
	{"cgroups", checkCgroups},
	{"postgresql", checkPostgres},
	{"toolchain", checkToolchain},
	{"disk", checkDisk},
	{"memory", checkMemory},
	{"ports", checkPorts},
	{"ca bundle", checkCA},
	{"base images", checkBaseTools},
}

func checkRoot(context.Context, *machine) Finding {
	if os.Geteuid() != 0 {
		return fail("run the server as root: sudo r server start", "not root (uid %d): a server cannot be started by this user", os.Geteuid())
	}
	return ok("root")
}

func checkPlatform(context.Context, *machine) Finding {
	switch runtime.GOARCH {
	case "amd64", "arm64":
		return ok("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	}
	return fail("use a machine with amd64 or arm64", "gVisor does not run on %s", runtime.GOARCH)
}

// minKernel is the oldest kernel that gVisor's systrap platform and containerd are used on.
const minMajor, minMinor = 5, 4

func checkKernel(context.Context, *machine) Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fail("", "uname: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, rest, _ := strings.Cut(release, ".")
	minor := strings.FieldsFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	a, aerr := strconv.Atoi(major)
	b := 0
	if len(minor) > 0 {
		b, _ = strconv.Atoi(minor[0]) // digits only
	}
	if aerr == nil && (a < minMajor || a == minMajor && b < minMinor) {
		return fail("use a newer kernel", "Linux %s is older than %d.%d", release, minMajor, minMinor)
	}
	return ok("Linux %s", release)
}

func checkFilesystems(context.Context, *machine) Finding {
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fail("mount /proc", "%v", err)
	}
	if !bytes.Contains(b, []byte("\toverlay\n")) {
		// It may be a module that is loaded on first use.
		return warn("load it: modprobe overlay", "overlayfs is not registered")
	}
	return ok("overlayfs")
}

func checkNetwork(context.Context, *machine) Finding {
	for _, p := range []string{"/proc/self/ns/net", "/proc/sys/net/ipv4/ip_forward"} {
		if _, err := os.Stat(p); err != nil {
			return fail("use a kernel with network namespaces and IPv4", "%s is missing", p)
		}
	}
	// Netlink of nftables answers only where the kernel has it.
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fail("use a kernel with nftables (CONFIG_NF_TABLES)", "netfilter's netlink is not there: %v", err)
	}
	unix.Close(fd)
	return ok("network namespaces, netfilter")
}

func checkCgroups(context.Context, *machine) Finding {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return fail("mount cgroups at /sys/fs/cgroup", "%v", err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if err != nil {
			return fail("", "cgroup v2: %v", err)
		}
		if missing := lacking(strings.Fields(string(b)), "cpu", "memory", "pids"); missing != "" {
			return fail("enable them in the kernel's command line", "cgroup v2 without the controllers %s: limits cannot be enforced", missing)
		}
		return ok("version 2: %s", strings.TrimSpace(string(b)))
	}
	var there []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", c)); err == nil {
			there = append(there, c)
		}
	}
	if missing := lacking(there, "cpu", "memory", "pids"); missing != "" {
		return fail("mount them below /sys/fs/cgroup", "cgroup v1 without the controllers %s: limits cannot be enforced", missing)
	}
	return ok("version 1: %s", strings.Join(there, " "))
}

func lacking(have []string, want ...string) string {
	var missing []string
	for _, w := range want {
		if !strings.Contains(" "+strings.Join(have, " ")+" ", " "+w+" ") {
			missing = append(missing, w)
		}
	}
	return strings.Join(missing, ", ")
}

func checkPostgres(_ context.Context, m *machine) Finding {
	if m.cfg.Store.URL != "" {
		return ok("an external one is configured (store.url)")
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/postgres", "/usr/pgsql-*/bin/postgres", "/opt/postgresql/*/bin/postgres"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return ok("%s", found[len(found)-1])
		}
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		return ok("%s", p)
	}
	return fail("apt-get install postgresql, or give --store-url", "no PostgreSQL on this machine")
}

// toolDir is where the toolchain is.
func toolDir(m *machine) (string, error) {
	if m.cfg.ToolchainDir != "" {
		return m.cfg.ToolchainDir, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return "", err
	}
	return filepath.Dir(exe), nil
}

func checkToolchain(_ context.Context, m *machine) Finding {
	dir, err := toolDir(m)
	if err != nil {
		return fail("", "%v", err)
	}
	var missing []string
	for _, t := range []string{"containerd", "runsc", "containerd-shim-runsc-v1", "containerd-shim-runsc-launch-v1", "buildkitd", "runtime-agent"} {
		if st, err := os.Stat(filepath.Join(dir, t)); err != nil || st.Mode()&0o111 == 0 {
			missing = append(missing, t)
		}
	}
	if len(missing) > 0 {
		return fail("`make toolchain bin/runtime` builds them, or name their directory with --toolchain-dir", "%s lacks %s", dir, strings.Join(missing, ", "))
	}
	return ok("%s", dir)
}

// Disk that a server needs to be comfortable, and to work at all.
const (
	wantDisk = 20 << 30
	needDisk = 4 << 30
)

func checkDisk(_ context.Context, m *machine) Finding {
	dir := m.cfg.StateDir
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			return fail("", "%s: %v", dir, err)
		}
		dir = filepath.Dir(dir)
	}
	free := int64(st.Bavail) * st.Bsize
	text := fmt.Sprintf("%s free for %s", schema.CellBytes(free), m.cfg.StateDir)
	switch {
	case free < needDisk:
		return fail("free some, or choose another --state-dir", "%s", text)
	case free < wantDisk:
		return warn("lower build.cache_bytes and build.source_bytes, or free some", "%s", text)
	}
	return ok("%s", text)
}

func checkMemory(context.Context, *machine) Finding {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return fail("", "sysinfo: %v", err)
	}
	total := int64(si.Totalram) * int64(si.Unit)
	if total < 2<<30 {
		return warn("use a machine with 2 GiB or more", "%s: little room for builds beside apps", schema.CellBytes(total))
	}
	return ok("%s", schema.CellBytes(total))
}

func checkPorts(_ context.Context, m *machine) Finding {
	addrs := []string{}
	for _, a := range []string{m.cfg.Ingress.HTTPAddress, m.cfg.RPC.Address, m.cfg.Metrics.Address} {
		if a != "" {
			addrs = append(addrs, a)
		}
	}
	if m.running {
		return ok("%s (in use by the running server)", strings.Join(addrs, ", "))
	}
	for _, a := range addrs {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return fail("stop what listens there, or choose another address (`r server start --ingress-http-address ...`)", "%s: %v", a, err)
		}
		_ = l.Close() // it was only tried
	}
	return ok("%s free", strings.Join(addrs, ", "))
}

func checkCA(_ context.Context, m *machine) Finding {
	path := m.cfg.CABundle
	switch path {
	case "none":
		return ok("none configured")
	case "auto", "":
		path = ""
		for _, p := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"} {
			if _, err := os.Stat(p); err == nil {
				path = p
				break
			}
		}
		if path == "" {
			return warn("apt-get install ca-certificates", "this machine has no CA bundle: builds that download over TLS may fail")
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fail("correct ca_bundle", "%v", err)
	}
	n := 0
	for len(b) > 0 {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); err == nil {
			n++
		}
	}
	if n == 0 {
		return fail("correct ca_bundle", "%s holds no certificate", path)
	}
	return ok("%s, %d certificates", path, n)
}

func checkBaseTools(context.Context, *machine) Finding {
	for _, t := range []string{"mmdebstrap", "debootstrap"} {
		if p, err := exec.LookPath(t); err == nil {
			return ok("%s", p)
		}
	}
	return warn("apt-get install debootstrap; not needed where a registry can be reached", "nothing that makes base images on this machine")
}
