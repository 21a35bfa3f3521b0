package runsc

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/atomicfile"
)

// runtimeName is the name by which containerd finds, in its PATH, the program
// that starts our shim.
const runtimeName = "io.containerd.runsc-launch.v1"

// optionsType is the type of the runtime options that our shim reads.
const optionsType = "io.containerd.runsc.v1.options"

// defaultOpenFiles is the limit of open files of one process. They are files of
// the sentry's, whose memory bounds all of them together.
const defaultOpenFiles = 1 << 16

// runscFlags are runsc's flags for all sandboxes.
var runscFlags = map[string]string{
	"network":             "sandbox", // also for a sandbox without a network: its namespace has loopback only
	"platform":            "systrap",
	"host-uds":            "open", // the agent dials its socket
	"overlay2":            "root:self",
	"allow-flag-override": "true", // for the size of the overlay, per sandbox
	"cpu-num-from-quota":  "true",
	"in-sandbox-cgroup":   "v2", // the cgroup in which the agent limits processes
	"debug":               "false",
}

// runscRoot is where runsc keeps its state, in one directory per namespace.
func (d *Driver) runscRoot() string { return d.cfg.Instance.Socket("runsc") }

func (d *Driver) runscConfig() string { return d.cfg.Instance.Socket("runsc.toml") }

func (d *Driver) writeRunscConfig() error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by runtime at every start; changes are lost.\n")
	fmt.Fprintf(&b, "binary_name = %q\nroot = %q\n\n[runsc_config]\n", filepath.Join(d.cfg.BinDir, "runsc"), d.runscRoot())
	for _, k := range sortedKeys(runscFlags) {
		fmt.Fprintf(&b, "%s = %q\n", k, runscFlags[k])
	}
	return atomicfile.Write(d.runscConfig(), []byte(b.String()), 0o644, atomicfile.Volatile)
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// ociSpec returns the container's specification: the agent as PID 1, which
// drops its extra privileges before it runs another program.
func (cr *creation) ociSpec() *specs.Spec {
	s := cr.spec
	spec := &specs.Spec{
		Version:  specs.Version,
		Hostname: hostname(s),
		Root:     &specs.Root{Path: "rootfs", Readonly: s.ReadOnlyRoot},
		Process: &specs.Process{
			Args:            cr.guest.Args,
			User:            specs.User{UID: agentproto.VaultUID, GID: agentproto.VaultUID},
			Env:             cr.guest.Env,
			Cwd:             "/",
			NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{
				Bounding:    cr.guest.Capabilities,
				Permitted:   cr.guest.Capabilities,
				Effective:   cr.guest.Capabilities,
				Inheritable: cr.guest.Capabilities,
				Ambient:     cr.guest.Capabilities, // the agent does not run as root
			},
			Rlimits: rlimits(s),
		},
		Annotations: map[string]string{
			// An annotation of our shim: one runsc command instead of two; the
			// agent waits for us anyway.
			"dev.miren.runtime/start":  "create",
			"dev.miren.runtime/join":   cr.helpers,
			"dev.gvisor.flag.overlay2": "root:self,size=" + overlaySize(s),
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=" + strconv.FormatInt(cr.shmBytes(), 10)}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: cr.d.cgroups.Path(s.ID),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: cr.network.NetNS},
			},
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if s.ReadOnlyRoot {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}})
	}
	spec.Mounts = append(spec.Mounts, cr.ca...)
	for _, m := range cr.guest.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		spec.Mounts = append(spec.Mounts, bind(m.Source, m.Target, mode))
	}
	if cr.takesVolumes() {
		volumes := bind(cr.d.volumesDir(s.ID), agentproto.GuestVolume, "rw")
		volumes.Options = append(volumes.Options, "rbind", "rslave")
		spec.Mounts = append(spec.Mounts, volumes)
		return spec
	}
	for _, m := range s.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		spec.Mounts = append(spec.Mounts, bind(m.Source, m.Target, mode))
	}
	return spec
}

// overlaySize is the size of the layer that a sandbox writes to: bytes, and files
// (an addition of hack/toolchain/runsc/build.sh).
func overlaySize(s execution.Spec) string {
	disk := s.DiskBytes
	if disk <= 0 {
		disk = DefaultDiskBytes
	}
	size := strconv.FormatInt(disk, 10)
	if s.DiskFiles > 0 {
		size += "/" + strconv.FormatInt(s.DiskFiles, 10)
	}
	return size
}

// rlimits are the limits of each process, which the agent hands down to all others.
func rlimits(s execution.Spec) []specs.POSIXRlimit {
	open := uint64(cmp.Or(s.OpenFiles, defaultOpenFiles))
	limits := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: open, Hard: open}, {Type: "RLIMIT_CORE"}}
	if size := uint64(s.FileBytes); size > 0 {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_FSIZE", Soft: size, Hard: size})
	}
	return limits
}

func bind(source, target, mode string) specs.Mount {
	return specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"bind", "nosuid", "nodev", mode}}
}

func hostname(s execution.Spec) string { return cmp.Or(s.Hostname, s.ID) }

// shmBytes bounds /dev/shm, which is memory, to half of it, as is usual.
func shmBytes(s execution.Spec) int64 {
	if s.MemoryBytes <= 0 {
		return 64 << 20
	}
	return s.MemoryBytes / 2
}
