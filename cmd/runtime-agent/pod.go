package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// The runtimes of Kubernetes know no ambient capabilities, so a container's first
// process has capabilities only as root. In a pod the agent therefore starts as
// root, prepares the container, and executes itself as VaultUID.

const (
	// podLinger is how long an agent whose main process has ended waits for the
	// node to fetch the log and the exit record.
	podLinger = 15 * time.Minute
	// podLook is how often it looks.
	podLook = 50 * time.Millisecond
	// podVaultBytes bounds the memory of each directory of the agent in a pod.
	podVaultBytes = 16 << 20
)

// podMain is the main of the forms of the command that belong to a pod.
func podMain(args []string) (int, error) {
	switch {
	case args[0] == agentproto.PodInstallFlag && len(args) == 2:
		if err := podInstall(args[1]); err != nil {
			return exitAgentFailed, err
		}
		return 0, nil
	case args[0] == agentproto.PodRelayFlag && len(args) == 2:
		if os.Getuid() == 0 {
			if err := keepOnly(unix.CAP_SETGID, unix.CAP_SETUID); err != nil {
				return exitAgentFailed, err
			}
			return exitAgentFailed, becomeVault()
		}
		if err := changeCapabilities(func(c *[2]unix.CapUserData) { *c = [2]unix.CapUserData{} }); err != nil {
			return exitAgentFailed, err
		}
		return 0, podRelay(args[1])
	case args[0] == agentproto.PodFlag && os.Getuid() == 0:
		return exitAgentFailed, podPrepare(args[1:])
	case args[0] == agentproto.PodFlag:
		if err := awaitConfig(); err != nil {
			return exitAgentFailed, err
		}
		return run(agentproto.GuestDir, agentproto.GuestLog, true)
	}
	return exitAgentFailed, unix.EINVAL
}

// podInstall copies this program into a volume of the pod, and makes the mount points
// there.
func podInstall(dir string) error {
	in := func(path string) string { return filepath.Join(dir, path[len(agentproto.PodRoot):]) }
	for _, d := range []string{filepath.Dir(agentproto.GuestBinary), agentproto.GuestDir, agentproto.GuestLog} {
		if err := os.MkdirAll(in(d), 0o755); err != nil {
			return err
		}
	}
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	to, err := os.OpenFile(in(agentproto.GuestBinary), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return to.Close()
}

// podPrepare mounts the agent's directories, which nobody else can enter or
// replace, cuts the network off if need be, and becomes the agent.
func podPrepare(args []string) error {
	options := fmt.Sprintf("mode=0700,uid=%d,gid=%d,size=%d", agentproto.VaultUID, agentproto.VaultUID, podVaultBytes)
	for _, dir := range []string{agentproto.GuestDir, agentproto.GuestLog} {
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
		if err := os.Chown(dir, agentproto.VaultUID, agentproto.VaultUID); err != nil {
			return err
		}
	}
	ready := filepath.Join(agentproto.GuestDir, agentproto.ReadyName)
	if err := unix.Mkfifo(ready, 0o600); err != nil {
		return &os.PathError{Op: "mkfifo", Path: ready, Err: err}
	}
	if err := os.Chown(ready, agentproto.VaultUID, agentproto.VaultUID); err != nil {
		return err
	}
	if len(args) > 0 && args[0] == agentproto.PodNoNetwork {
		if err := removeAddresses(); err != nil {
			return fmt.Errorf("cut off the network: %w", err)
		}
	}
	// The driver gives the container this one for the preparation alone. The agent needs the others, or its programs have them.
	if err := changeOwnCapabilities(func(c *[2]unix.CapUserData) { drop(c, unix.CAP_NET_ADMIN) }); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return becomeVault()
}

// keepOnly leaves this thread, and what it executes, these capabilities.
func keepOnly(keep ...uint) error {
	return changeOwnCapabilities(func(c *[2]unix.CapUserData) {
		for i := range uint(64) {
			if !slices.Contains(keep, i) {
				drop(c, i)
			}
		}
	})
}

// changeOwnCapabilities changes those of this thread, and of what it executes.
func changeOwnCapabilities(change func(*[2]unix.CapUserData)) error {
	runtime.LockOSThread()
	hdr, data, err := capabilities()
	if err != nil {
		return err
	}
	change(&data)
	for i := range data {
		data[i].Effective, data[i].Inheritable = data[i].Permitted, data[i].Permitted
	}
	return unix.Capset(&hdr, &data[0])
}

// awaitConfig waits until a relay has written the configuration.
func awaitConfig() error {
	path := filepath.Join(agentproto.GuestDir, agentproto.ReadyName)
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		unix.Close(fd)
		return nil
	}
}

// awaitShipped waits until the node has the log and the exit record.
func awaitShipped(logDir string) {
	path := filepath.Join(logDir, agentproto.ShippedName)
	for began := time.Now(); time.Since(began) < podLinger; time.Sleep(podLook) {
		if _, err := os.Lstat(path); err == nil {
			return
		}
	}
}

// removeAddresses removes the addresses of every interface but loopback.
// Afterwards nothing leaves the sandbox, whatever the cluster's network allows, and
// nothing in it has the capability to undo it.
func removeAddresses() error {
	list, err := outsideAddresses()
	if err != nil {
		return err
	}
	for _, request := range list {
		if err := netlinkRequest(syscall.RTM_DELADDR, request); err != nil {
			return err
		}
	}
	if list, err = outsideAddresses(); err == nil && len(list) > 0 {
		err = errors.New("addresses are left")
	}
	return err
}

// outsideAddresses returns the requests that name the addresses of every interface
// but loopback.
func outsideAddresses() (requests [][]byte, err error) {
	links, err := loopbackLinks()
	if err != nil {
		return nil, err
	}
	table, err := syscall.NetlinkRIB(syscall.RTM_GETADDR, syscall.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	list, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		if m.Header.Type != syscall.RTM_NEWADDR || len(m.Data) < syscall.SizeofIfAddrmsg {
			continue
		}
		if index := (*syscall.IfAddrmsg)(unsafe.Pointer(&m.Data[0])).Index; links[index] {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, err
		}
		var address []byte
		for _, a := range attributes {
			if a.Attr.Type == syscall.IFA_LOCAL || a.Attr.Type == syscall.IFA_ADDRESS && address == nil {
				address = a.Value
			}
		}
		// gVisor refuses requests with more attributes.
		request := append([]byte(nil), m.Data[:syscall.SizeofIfAddrmsg]...)
		request = binary.LittleEndian.AppendUint16(request, uint16(syscall.SizeofRtAttr+len(address)))
		request = binary.LittleEndian.AppendUint16(request, syscall.IFA_LOCAL)
		requests = append(requests, append(request, address...))
	}
	return requests, nil
}

// loopbackLinks returns the indexes of the loopback interfaces.
func loopbackLinks() (map[uint32]bool, error) {
	table, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	list, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return nil, err
	}
	loopback := map[uint32]bool{}
	for _, m := range list {
		if m.Header.Type != syscall.RTM_NEWLINK || len(m.Data) < syscall.SizeofIfInfomsg {
			continue
		}
		info := (*syscall.IfInfomsg)(unsafe.Pointer(&m.Data[0]))
		loopback[uint32(info.Index)] = info.Flags&syscall.IFF_LOOPBACK != 0
	}
	return loopback, nil
}

// netlinkRequest sends a request and reads the kernel's answer.
func netlinkRequest(kind uint16, payload []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, syscall.NLMSG_HDRLEN, syscall.NLMSG_HDRLEN+len(payload))
	*(*syscall.NlMsghdr)(unsafe.Pointer(&b[0])) = syscall.NlMsghdr{
		Len: uint32(syscall.NLMSG_HDRLEN + len(payload)), Type: kind, Flags: syscall.NLM_F_REQUEST | syscall.NLM_F_ACK, Seq: 1,
	}
	if err := unix.Sendto(fd, append(b, payload...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	list, err := syscall.ParseNetlinkMessage(answer[:n])
	if err != nil {
		return err
	}
	for _, m := range list {
		if m.Header.Type != syscall.NLMSG_ERROR || len(m.Data) < 4 {
			continue
		}
		if code := *(*int32)(unsafe.Pointer(&m.Data[0])); code != 0 {
			return syscall.Errno(-code)
		}
		return nil
	}
	return errors.New("the kernel did not answer")
}
