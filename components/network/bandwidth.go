package network

import (
	"math"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/cni"
	"miren.dev/runtime/pkg/errs"
)

// Sizes of the token buckets.
const (
	// minBurst is more than the 64 KiB that the sentry sends as one packet for the kernel to divide.
	minBurst = 128 << 10
	// burstsPerSecond: a bucket holds what passes within 50 ms, and so does the queue behind it.
	burstsPerSecond = 20
)

// limit bounds the bytes per second that the sandbox of a namespace sends, and
// those that it gets; 0: no limit. A token bucket is at each end of its interface,
// where packets leave the kernel. The sandbox can change neither: it has its own
// network stack, and no rights in the namespace.
func limit(netNS string, rate int64) error {
	if rate <= 0 {
		return nil
	}
	ns, err := unix.Open(netNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return errs.New(errs.Unavailable, "open %s: %w", netNS, err)
	}
	defer unix.Close(ns)
	host := 0 // index of the other end; 0: it is not in the machine's namespace
	err = inNetNS(ns, func() error {
		inside, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer inside.Close()
		guest, err := inside.LinkByName(cni.Interface)
		if err != nil {
			return err
		}
		if guest.Type() == "veth" {
			host = guest.Attrs().ParentIndex
		}
		return inside.QdiscReplace(bucket(guest.Attrs().Index, rate))
	})
	if err == nil && host != 0 {
		err = netlink.QdiscReplace(bucket(host, rate))
	}
	if err != nil {
		return errs.New(errs.Unavailable, "limit the bandwidth: %w", err).
			WithHint("the kernel needs the token bucket filter (CONFIG_NET_SCH_TBF, module sch_tbf)")
	}
	return nil
}

// bucket lets an interface send rate bytes per second. What finds no place in its queue is dropped.
func bucket(link int, rate int64) *netlink.Tbf {
	burst := max(minBurst, rate/burstsPerSecond)
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       uint64(rate),
		Buffer:     netlink.Xmittime(uint64(rate), uint32(burst)),
		Limit:      uint32(min(2*burst, math.MaxUint32)),
	}
}
