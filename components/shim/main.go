// Command containerd-shim-runsc-v1 lets containerd run containers in gVisor. It is gVisor's own shim
// (gvisor.dev/gvisor/pkg/shim/v1) with what this project needs around it.
//
// # What it adds
//
//   - A container whose spec has no io.kubernetes.cri.container-type annotation becomes a sandbox of its own. The
//     shim below wires the output of sandboxes only; without the annotation, create hangs until the deadline.
//   - Containers with container-type=container and io.kubernetes.cri.sandbox-id share the shim process of their
//     sandbox, besides its kernel. The sandbox must be created first and deleted last.
//   - A lowered oom_score_adj is a wish: a host that refuses it (no CAP_SYS_RESOURCE) is not an error.
//   - The exit status of a container that ends quickly, or whose sandbox is killed, is not lost (exits.go).
//   - What containerd runs to start it can be a smaller program (containerd-shim-runsc-launch-v1).
//   - runsc is run for what only it can do, not to ask for what the shim knows (commands.go).
//   - A container can be started when it is created (below).
//   - A CA bundle of the host is given to the container (below).
//   - A container can start from a checkpoint (below), and the task API's Checkpoint works.
//   - A container can have limits; its error output names the one that ended it (below).
//
// # Runtime options
//
// runsc is configured by a TOML file that the caller names in the runtime options of the container:
// runtimeoptions.v1.Options{TypeUrl: "io.containerd.runsc.v1.options", ConfigPath: "/abs/runsc.toml"}. ConfigBody is
// ignored. The file is read when a container is created, not when its shim starts, and must stay for as long as there
// are containers that were created with it. It holds the keys of gVisor's shim and one table of ours:
//
//	binary_name = "/abs/bin/runsc"      # else the first runsc in containerd's PATH
//	root = "/run/runtime/<id>/runsc"    # runsc's state is in <root>/<containerd namespace>
//
//	[runsc_config]                      # runsc's flags, all values are strings
//	network = "sandbox"
//	platform = "systrap"
//	host-uds = "open"                   # containers may connect to unix sockets in their bind mounts
//	overlay2 = "root:self"              # "none" for builds: what they write must reach the snapshot
//	allow-flag-override = "true"        # containers may carry dev.gvisor.flag.<name> annotations
//
//	[runtime]                           # read by this package only
//	ca_bundle = "/etc/ssl/certs/ca-certificates.crt"
//	restore_network = true              # give the network namespace its addresses back at the end (below)
//
//	[limits]                            # of each first container of a sandbox; absent: none (below)
//	memory_bytes = 1073741824
//	tasks = 33280                       # threads on the host
//	disk_bytes = 10737418240            # that it writes
//	disk_free_bytes = 5368709120        # that the disk must have left
//
// One sandbox is one runsc kernel: root, platform, network and host-uds of the sandbox hold for the containers that
// join it, and must be the same in their options. With allow-flag-override, annotations decide about
// the isolation of the container: only the driver may write them, never a user.
//
// runsc finds containers by the beginning of their id too: no id may be the beginning of another one's under the same
// root and namespace ("pod" and "pod2" are ambiguous). Ids of one length are safe.
//
// Besides this file there is one read from a fixed place by gVisor's shim, /run/containerd/runsc/config.toml (or
// under /etc/containerd): it need not exist, and its grouping key is not used.
//
// # Sockets and control groups
//
// With RUNTIME_SHIM_SOCKETS in containerd's environment the socket of a shim is in that directory, named as the sandbox
// is, where it can be listed; else where containerd's socket_dir says. A container with the annotation
// dev.miren.runtime/join=/abs/cgroup.procs has its shim, and the runsc commands that the shim runs, in that control group
// from their first moment: by it they are found when containerd was killed and knows nothing of them. Without the group
// the shim does not start.
//
// # CA bundle
//
// Builds on a host behind a TLS-inspecting proxy need the host's certificates. A container gets the bundle that
// [runtime] ca_bundle of the options names: mounted read-only at /run/runtime/ca-certificates.crt, with the variables
// that tools look at (see caVariables) set to it where the image sets none, and APT_CONFIG for apt, which looks at none.
// Sandboxes get theirs from the driver, which makes no such option.
//
// In a root that is kept, as that of a build, the mount points that this needs are removed when the container is
// deleted, so images come out as if nothing had been there. Neither the containerd container nor the image knows
// any of it: cache keys stay as they are, and a process added by exec has its variables by the same rule.
//
// # Limits
//
// The containers of build steps are made by BuildKit, which knows no limits for processes and disks. With [limits],
// memory and tasks are those of the container's control group. What it writes to its root and its writable mounts is
// counted every few seconds, and at once when the disk loses as much; a container that wrote too much is killed.
// Which limit ended a container is the last line of its error output: "runtime: limit memory: ..." (limits.go).
//
// # Network namespaces
//
// runsc takes the addresses and routes out of the network namespace it starts in. Normally a namespace serves one
// sandbox and goes with it; BuildKit's are pooled and given to one build step after the other. With
// restore_network the namespace is, after the sandbox, as it was before: without it, every second RUN has no network.
//
// # Started when created
//
// A container with the annotation dev.miren.runtime/start=create, the first of its sandbox, runs when the task API's
// Create returns: one runsc makes and starts it, where two would cost a tenth of a second more on a busy machine.
// Start must be called as ever, and only makes it known. What the container does before that is not held back.
//
// # Checkpoints
//
// A container with the annotation dev.miren.runtime/restore-image=/abs/dir starts from the runsc checkpoint in that
// directory instead of from its process; with dev.miren.runtime/restore-background=true before all of its memory is
// in. Its spec must have the mounts of the checkpointed one.
//
// The task API's Checkpoint, with containerd's runc CheckpointOptions{ImagePath, Exit}, writes such a directory:
// ImagePath must exist and be empty; without Exit the sandbox keeps running. Call it through the client's
// TaskService(): the client's Task.Checkpoint also makes an image of the container's files, which takes seconds.
// Calling runsc directly, as `runsc --root=<root>/<namespace> checkpoint --image-path=<dir> [--leave-running] <id>`,
// is as good, and has more options.
package main

import (
	"context"

	"github.com/containerd/containerd/v2/pkg/shim"
)

// runtimeName is what containerd calls this shim when it is found by name: containerd-shim-runsc-v1 in its PATH.
const runtimeName = "io.containerd.runsc.v1"

func main() {
	shim.Run(context.Background(), newManager(runtimeName))
}
