package sandboxes

import (
	"cmp"
	"slices"
)

// confined returns a command that runs argv in a second layer inside its
// sandbox, by bubblewrap: with processes, users and host name of its own, no
// capability, and a root file system that it reads only. It can write to the
// directory dir, to /tmp and to nothing else, and sees neither other processes of
// the sandbox nor the files of the node in /run. It does not get refusedCalls. The
// network is the sandbox's.
func confined(dir string, argv []string) []string {
	dir = cmp.Or(dir, "/tmp")
	layer := []string{
		"bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL", "--die-with-parent", "--seccomp", "9",
		"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run", "--bind", "/tmp", "/tmp", "--bind", dir, dir,
	}
	for _, f := range []string{"/run/runtime/ca-certificates.crt", "/run/runtime/apt.conf"} { // variables name them
		layer = append(layer, "--ro-bind-try", f, f)
	}
	// bwrap reads its filter from a descriptor, and a process is started with three. A file would be in reach of other
	// confined programs.
	shell := []string{"sh", "-c", `exec 3<&0; printf '` + printedFilter + `' | { exec 9<&0 0<&3 3<&-; exec "$@"; }`, "confine"}
	return slices.Concat(shell, layer, []string{"--chdir", dir, "--"}, argv)
}
