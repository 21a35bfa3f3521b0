// Package hostcheck checks whether a machine can run a server: kernel, network,
// cgroups, installed programs, disk, memory, ports. `r doctor` reports the findings.
package hostcheck

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

	"miren.dev/runtime/cli/doctor"
	"miren.dev/runtime/pkg/schema"
)

// Checks of the machine, in the order in which they are printed.
var Checks = []doctor.Check{
	{Name: "user", Run: checkRoot},
	{Name: "platform", Run: checkPlatform},
	{Name: "kernel", Run: checkKernel},
	{Name: "filesystems", Run: checkFilesystems},
	{Name: "network", Run: checkNetwork},
	{Name: "cgroups", Run: checkCgroups},
	{Name: "postgresql", Run: checkPostgres},
	{Name: "toolchain", Run: checkToolchain},
	{Name: "disk", Run: checkDisk},
	{Name: "memory", Run: checkMemory},
	{Name: "ports", Run: checkPorts},
	{Name: "ca bundle", Run: checkCA},
	{Name: "base images", Run: checkBaseTools},
	{Name: "clock", Run: checkClock},
	{Name: "store", Run: checkStore},
	{Name: "restore", Run: checkRestore},
	{Name: "certificates", Run: checkCertificates},
	{Name: "leftovers", Run: checkLeftovers, Fix: fixLeftovers},
}

var good, warning, failure = doctor.Good, doctor.Warning, doctor.Failure

func checkRoot(context.Context, *doctor.Host) doctor.Finding {
	if os.Geteuid() != 0 {
		return failure("run the server as root: sudo r server start", "not root (uid %d): only root can start a server", os.Geteuid())
	}
	return good("root")
}

func checkPlatform(context.Context, *doctor.Host) doctor.Finding {
	switch runtime.GOARCH {
	case "amd64", "arm64":
		return good("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	}
	return failure("use a machine with amd64 or arm64", "gVisor does not run on %s", runtime.GOARCH)
}

// minMajor and minMinor are the oldest Linux that gVisor's systrap platform and containerd are tested on.
const minMajor, minMinor = 5, 4

func checkKernel(context.Context, *doctor.Host) doctor.Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return failure("", "uname: %v", err)
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
		return failure("use a newer kernel", "Linux %s is older than %d.%d", release, minMajor, minMinor)
	}
	return good("Linux %s", release)
}

func checkFilesystems(context.Context, *doctor.Host) doctor.Finding {
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return failure("mount /proc", "%v", err)
	}
	if !bytes.Contains(b, []byte("\toverlay\n")) {
		// A module is loaded on first use.
		return warning("load it: modprobe overlay", "overlayfs is not registered")
	}
	return good("overlayfs")
}

func checkNetwork(context.Context, *doctor.Host) doctor.Finding {
	for _, p := range []string{"/proc/self/ns/net", "/proc/sys/net/ipv4/ip_forward"} {
		if _, err := os.Stat(p); err != nil {
			return failure("use a kernel with network namespaces and IPv4", "%s is missing", p)
		}
	}
	// Netlink of nftables answers only where the kernel has it.
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return failure("use a kernel with nftables (CONFIG_NF_TABLES)", "netfilter does not answer on netlink: %v", err)
	}
	unix.Close(fd)
	return good("network namespaces, netfilter")
}

func checkCgroups(context.Context, *doctor.Host) doctor.Finding {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return failure("mount cgroups at /sys/fs/cgroup", "%v", err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if err != nil {
			return failure("", "cgroup v2: %v", err)
		}
		if missing := lacking(strings.Fields(string(b)), "cpu", "memory", "pids"); missing != "" {
			return failure("enable them in the kernel's command line", "cgroup v2 without the controllers %s: limits cannot be enforced", missing)
		}
		return good("version 2: %s", strings.TrimSpace(string(b)))
	}
	var present []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", c)); err == nil {
			present = append(present, c)
		}
	}
	if missing := lacking(present, "cpu", "memory", "pids"); missing != "" {
		return failure("mount them below /sys/fs/cgroup", "cgroup v1 without the controllers %s: limits cannot be enforced", missing)
	}
	return good("version 1: %s", strings.Join(present, " "))
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

func checkPostgres(_ context.Context, h *doctor.Host) doctor.Finding {
	if h.Config.Store.URL != "" {
		return good("not needed: another store is configured (store.url)")
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/postgres", "/usr/pgsql-*/bin/postgres", "/opt/postgresql/*/bin/postgres"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return good("%s", found[len(found)-1])
		}
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		return good("%s", p)
	}
	return failure("apt-get install postgresql, or give --store-url", "no PostgreSQL on this machine")
}

// toolDir returns the directory of the toolchain.
func toolDir(h *doctor.Host) (string, error) {
	if h.Config.ToolchainDir != "" {
		return h.Config.ToolchainDir, nil
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

func checkToolchain(_ context.Context, h *doctor.Host) doctor.Finding {
	dir, err := toolDir(h)
	if err != nil {
		return failure("", "%v", err)
	}
	var missing []string
	for _, t := range []string{"containerd", "runsc", "containerd-shim-runsc-v1", "containerd-shim-runsc-launch-v1", "buildkitd", "runtime-agent", "runtime-launch"} {
		if st, err := os.Stat(filepath.Join(dir, t)); err != nil || st.Mode()&0o111 == 0 {
			missing = append(missing, t)
		}
	}
	if len(missing) > 0 {
		return failure("`make toolchain bin/runtime` builds them, or name their directory with --toolchain-dir", "%s lacks %s", dir, strings.Join(missing, ", "))
	}
	return good("%s", dir)
}

// Free disk space in bytes: below wantDisk a warning, below needDisk a failure.
const (
	wantDisk = 20 << 30
	needDisk = 4 << 30
)

func checkDisk(_ context.Context, h *doctor.Host) doctor.Finding {
	dir := h.Config.StateDir
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			return failure("", "%s: %v", dir, err)
		}
		dir = filepath.Dir(dir)
	}
	free := int64(st.Bavail) * st.Bsize
	text := fmt.Sprintf("%s free for %s", schema.CellBytes(free), h.Config.StateDir)
	switch {
	case free < needDisk:
		return failure("free disk space, or choose another --state-dir", "%s", text)
	case free < wantDisk:
		return warning("lower build.cache_bytes and build.source_bytes, or free disk space", "%s", text)
	}
	return good("%s", text)
}

func checkMemory(context.Context, *doctor.Host) doctor.Finding {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return failure("", "sysinfo: %v", err)
	}
	total := int64(si.Totalram) * int64(si.Unit)
	if total < 2<<30 {
		return warning("use a machine with 2 GiB or more", "%s: little room for builds beside apps", schema.CellBytes(total))
	}
	return good("%s", schema.CellBytes(total))
}

func checkPorts(_ context.Context, h *doctor.Host) doctor.Finding {
	addrs := []string{}
	for _, a := range []string{h.Config.Ingress.HTTPAddress, h.Config.Ingress.HTTPSAddress, h.Config.RPC.Address, h.Config.API.Address, h.Config.Metrics.Address} {
		if a != "" {
			addrs = append(addrs, a)
		}
	}
	if h.Running {
		return good("%s (in use by the running server)", strings.Join(addrs, ", "))
	}
	for _, a := range addrs {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return failure("stop the program that listens there, or choose another address (`r server start --ingress-http-address ...`)", "%s: %v", a, err)
		}
		_ = l.Close() // the listener accepted no connection
	}
	return good("%s free", strings.Join(addrs, ", "))
}

func checkCA(_ context.Context, h *doctor.Host) doctor.Finding {
	path := h.Config.CABundle
	switch path {
	case "none":
		return good("none configured")
	case "auto", "":
		path = ""
		for _, p := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"} {
			if _, err := os.Stat(p); err == nil {
				path = p
				break
			}
		}
		if path == "" {
			return warning("apt-get install ca-certificates", "this machine has no CA bundle: builds that download over TLS may fail")
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return failure("correct ca_bundle", "%v", err)
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
		return failure("correct ca_bundle", "%s contains no certificate", path)
	}
	return good("%s, %d certificates", path, n)
}

func checkBaseTools(context.Context, *doctor.Host) doctor.Finding {
	for _, t := range []string{"mmdebstrap", "debootstrap"} {
		if p, err := exec.LookPath(t); err == nil {
			return good("%s", p)
		}
	}
	return warning("apt-get install debootstrap; not needed where a registry can be reached", "no program that makes base images is installed")
}
