// Package hoststats reads what a machine uses as a whole.
package hoststats

import (
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Usage is one reading.
type Usage struct {
	CPUSeconds    float64 // that processors worked since the boot, of all together
	MemoryUsed    int64   // bytes that programs could not have
	MemoryTotal   int64   // bytes
	Processes     int64
	ReceivedBytes int64 // by network interfaces of the machine, without those of sandboxes
	SentBytes     int64 // by the same
	DiskUsed      int64 // bytes of the file system of the directory
	DiskTotal     int64 // bytes
}

// virtual begins the names of interfaces that carry what another one carries too.
var virtual = []string{"lo", "veth", "br-", "docker", "cni", "virbr", "ifb", "dummy"}

// Read reads the machine; dir is a directory of the disk that matters. skip reports
// whether an interface belongs to an installation.
func Read(dir string, skip func(name string) bool) (Usage, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return Usage{}, errs.New(errs.Unavailable, "read /proc: %w", err)
	}
	st, err := fs.Stat()
	if err != nil {
		return Usage{}, errs.New(errs.Unavailable, "read /proc/stat: %w", err)
	}
	mem, err := fs.Meminfo()
	if err != nil {
		return Usage{}, errs.New(errs.Unavailable, "read /proc/meminfo: %w", err)
	}
	procs, err := fs.AllProcs()
	if err != nil {
		return Usage{}, errs.New(errs.Unavailable, "list processes: %w", err)
	}
	net, err := fs.NetDev()
	if err != nil {
		return Usage{}, errs.New(errs.Unavailable, "read /proc/net/dev: %w", err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return Usage{}, errs.New(errs.Unavailable, "file system of %s: %w", dir, err)
	}
	c := st.CPUTotal
	u := Usage{CPUSeconds: c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal, Processes: int64(len(procs))}
	if mem.MemTotalBytes != nil && mem.MemAvailableBytes != nil {
		u.MemoryTotal, u.MemoryUsed = int64(*mem.MemTotalBytes), int64(*mem.MemTotalBytes)-int64(*mem.MemAvailableBytes)
	}
	u.DiskTotal, u.DiskUsed = int64(disk.Blocks)*disk.Bsize, int64(disk.Blocks-disk.Bfree)*disk.Bsize
	for name, l := range net {
		if isVirtual(name) || skip != nil && skip(name) {
			continue
		}
		u.ReceivedBytes += int64(l.RxBytes)
		u.SentBytes += int64(l.TxBytes)
	}
	return u, nil
}

func isVirtual(name string) bool {
	for _, p := range virtual {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
