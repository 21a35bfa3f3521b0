// Package launch starts shim processes. containerd runs a program for that, which must answer with the address of the
// shim and end; the shim, which it leaves behind, finds its listening socket as descriptor 3, its address in the file
// "address" of the bundle, and writes no pid of its own: "shim.pid" is written here.
//
// It is a package of few dependencies, so that the program that does nothing else (containerd-shim-runsc-launch-v1)
// starts in a fraction of the time that the shim needs.
package launch

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// Annotations by which a container names its sandbox.
const (
	ContainerType = "io.kubernetes.cri.container-type"
	SandboxID     = "io.kubernetes.cri.sandbox-id"
)

// Join is an annotation: a file of a control group, which the shim and all that
// it starts join before anything else. By it they are found when containerd
// does not know of them any more.
const Join = "dev.miren.runtime/join"

// SocketDir is a variable of containerd's environment: the directory of the
// shims' sockets, each named as its sandbox is.
const SocketDir = "RUNTIME_SHIM_SOCKETS"

// socketRoot is where containerd's own library puts sockets of shims.
const socketRoot = "/run/containerd/s"

// oomScore protects the shim from the OOM killer: without the shim the end of its sandbox is not seen.
const oomScore = "-999"

// Shim says which shim to start. The working directory is the bundle of the container.
type Shim struct {
	Path       string // the program
	Namespace  string // containerd namespace
	ID         string // id of the container
	Containerd string // address of containerd
	Debug      bool
	SocketDir  string // may be empty
	// Bootstrap is what containerd writes to the standard input of a starting shim.
	Bootstrap io.Reader
}

// Start starts the shim process that serves the container, or finds the one that serves its sandbox, and returns its
// address.
func (s Shim) Start() (string, error) {
	if s.Namespace == "" {
		return "", errors.New("the namespace is empty")
	}
	annotations, err := readAnnotations(s.ID)
	if err != nil {
		return "", err
	}
	if file := annotations[Join]; file != "" {
		// Without O_CREATE: when the group is gone the sandbox is not wanted any more.
		if err := joinGroup(file); err != nil {
			return "", fmt.Errorf("join control group: %w", err)
		}
	}
	sandbox := sandboxOf(s.ID, annotations)
	path, err := s.socket(sandbox)
	if err != nil {
		return "", fmt.Errorf("shim address of %s: %w", sandbox, err)
	}
	address := "unix://" + path
	socket, err := listen(path)
	if err != nil {
		return "", fmt.Errorf("listen on %s: %w", path, err)
	}
	// The shim finds its own address here, and containerd the address of a shim to reconnect to.
	if err := os.WriteFile("address", []byte(address), 0o644); err != nil {
		return "", err
	}
	if socket == nil {
		return address, nil
	}
	defer socket.Close() // only this process's descriptor: the shim holds its own
	if err := s.spawn(socket); err != nil {
		return "", errors.Join(err, os.Remove(path))
	}
	return address, nil
}

// socketDirField is the number of socket_dir in containerd.runtime.bootstrap.v1.BootstrapParams. The types come with a
// newer API than gVisor's shim builds with.
const socketDirField = 9

// maxSocketPath is the longest path of a unix socket, without its NUL.
const maxSocketPath = 107

// maxBootstrap bounds what is read of it.
const maxBootstrap = 1 << 20

// socket returns the path of the socket of a sandbox's shim: in SocketDir under its own name, where it can be listed;
// else in containerd's socket_dir ([plugins."io.containerd.shim.v1.manager"]), under a name that no two containerds and
// namespaces share.
func (s Shim) socket(sandbox string) (string, error) {
	if s.SocketDir != "" {
		path := filepath.Join(s.SocketDir, sandbox)
		if filepath.Dir(path) != filepath.Clean(s.SocketDir) || len(path) > maxSocketPath {
			return "", fmt.Errorf("%s cannot be a socket: it must be directly in its directory and have at most %d bytes", path, maxSocketPath)
		}
		return path, nil
	}
	params, err := io.ReadAll(io.LimitReader(s.Bootstrap, maxBootstrap))
	if err != nil {
		return "", fmt.Errorf("read bootstrap parameters: %w", err)
	}
	dir := bytesField(params, socketDirField)
	if dir == "" {
		dir = socketRoot
	}
	return filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(s.Containerd, s.Namespace, sandbox))))), nil
}

// bytesField returns the last value of a string field of a protobuf message; empty when there is none, or no message.
func bytesField(message []byte, number protowire.Number) (value string) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return ""
		}
		message = message[size:]
		if n == number && kind == protowire.BytesType {
			v, size := protowire.ConsumeBytes(message)
			if size < 0 {
				return ""
			}
			value, message = string(v), message[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return ""
		}
		message = message[size:]
	}
	return value
}

// readAnnotations returns the annotations of container id.
func readAnnotations(id string) (map[string]string, error) {
	b, err := os.ReadFile("config.json")
	if err != nil {
		return nil, fmt.Errorf("read spec of %s: %w", id, err)
	}
	var spec struct{ Annotations map[string]string }
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, fmt.Errorf("read spec of %s: %w", id, err)
	}
	return spec.Annotations, nil
}

// sandboxOf returns the id of the sandbox that a container with these annotations belongs to.
func sandboxOf(id string, annotations map[string]string) string {
	if annotations[ContainerType] == "container" && annotations[SandboxID] != "" {
		return annotations[SandboxID]
	}
	return id
}

func joinGroup(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("0") // pid of the writing process
	return errors.Join(err, f.Close())
}

// listen makes the shim's socket. It returns nil when a shim serves there already. It replaces a socket without a
// listener, which a killed shim left.
func listen(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	socket, err := bind(path)
	if !errors.Is(err, unix.EADDRINUSE) {
		return socket, err
	}
	if served(path) {
		return nil, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return bind(path)
}

func newSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	return fd, os.NewSyscallError("socket", err)
}

// bind listens on a path where no socket is. From the first moment only root can connect.
func bind(path string) (*os.File, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	old := unix.Umask(0o177)
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	unix.Umask(old)
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	return f, nil
}

// served reports whether a process listens on a socket.
func served(path string) bool {
	fd, err := newSocket()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// It does not wait: a full queue (EAGAIN) has a listener too.
	_ = unix.SetNonblock(fd, true)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	return err == nil || err == unix.EAGAIN
}

// spawn starts the shim process, serving on socket.
func (s Shim) spawn(socket *os.File) error {
	args := []string{s.Path, "-namespace", s.Namespace, "-address", s.Containerd, "-id", s.ID}
	if s.Debug {
		args = append(args, "-debug")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	p, err := os.StartProcess(s.Path, args, &os.ProcAttr{
		// One thread at a time is enough to wait and to copy output, and each further thread costs memory, in every
		// sandbox. runsc does not pass this on to the sandbox.
		Env:   append(os.Environ(), "GOMAXPROCS=1"),
		Files: []*os.File{null, null, null, socket}, // descriptor 3, where shims look for it
		// Not in containerd's process group, whose signals are not for the
		// shim.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return fmt.Errorf("start shim: %w", err)
	}
	// This process does not wait for the shim: it ends next, and the shim
	// outlives it.
	if err := protect(p.Pid); err != nil {
		return errors.Join(err, p.Kill())
	}
	return p.Release()
}

// protect records the shim's process id and asks for its protection, which the host may refuse.
func protect(pid int) error {
	const name = "shim.pid"
	if err := os.WriteFile(name+".tmp", strconv.AppendInt(nil, int64(pid), 10), 0o644); err != nil {
		return err
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return err
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(oomScore), 0)
	if errors.Is(err, os.ErrPermission) { // EACCES and EPERM: no CAP_SYS_RESOURCE
		return nil
	}
	return err
}

// Answer is the answer that containerd reads from a started shim.
func Answer(address string) ([]byte, error) {
	return json.Marshal(struct {
		Version  int    `json:"version"`
		Address  string `json:"address"`
		Protocol string `json:"protocol"`
	}{2, address, "ttrpc"})
}
