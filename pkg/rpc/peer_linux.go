package rpc

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// socketIdentity is the identity of a unix socket's peer: root and the server's
// own user are admin.
func socketIdentity(nc *net.UnixConn) (Identity, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return Identity{}, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Identity{}, err
	}
	if cerr != nil {
		return Identity{}, fmt.Errorf("peer credentials: %w", cerr)
	}
	id := Identity{Name: fmt.Sprintf("uid:%d", cred.Uid), How: "socket"}
	if cred.Uid == 0 {
		id.Name = "root"
	}
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		id.Roles = []string{RoleAdmin}
	}
	return id, nil
}
