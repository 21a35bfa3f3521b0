// Package launch is the protocol between the node and the program runtime-launch, which
// starts sandboxes.
package launch

// Binary is the name of the program, in the directory of the toolchain.
const Binary = "runtime-launch"

// Request is what to run, and where. All paths are absolute.
type Request struct {
	Group  string   // cgroup.procs of the control group to join
	Rootfs string   // directory on which Mounts are mounted
	Mounts []Mount  // of the root filesystem
	Keep   []string // paths that the sandbox needs: the mounts above and below them stay
	Drop   []string // directories, below those of Keep, whose mounts do not stay unless Keep names them or paths in them
	Follow []string // mount points, below a path of Keep, in which later mounts of the host appear too
	Args   []string // the program, which ends up with /dev/null as standard input, output and error
	Env    []string
}

// Mount is one mount, as containerd's snapshotters name it.
type Mount struct {
	Type, Source string
	Options      []string
}
