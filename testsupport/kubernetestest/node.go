package kubernetestest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"miren.dev/runtime/testsupport/executiontest"
	"miren.dev/runtime/testsupport/wait"
)

const (
	nodeName   = "node"
	pauseImage = "test.invalid/pause:1"
	criName    = "k8s.io" // containerd's namespace of the kubelet
)

// Node is the cluster's node.
type Node struct {
	Image string // reference of executiontest.Image

	t          testing.TB
	c          *Cluster
	bin        string
	bridge     string
	subnet     netip.Prefix
	cgroup     string // name at the root of each hierarchy
	containerd *process
	kubelet    *process
	client     *client.Client
}

// startNode starts containerd and kubelet.
func startNode(t testing.TB, c *Cluster, bin string) *Node {
	t.Helper()
	n := &Node{t: t, c: c, bin: bin, bridge: "k8t" + c.id, cgroup: "k8t-" + c.id}
	n.makeBridge()
	n.makeCgroups()
	n.startContainerd()
	n.importImages()
	n.startKubelet()
	ctx, cancel := context.WithCancel(context.Background())
	scheduled := make(chan struct{})
	go func() { defer close(scheduled); c.schedule(ctx) }()
	t.Cleanup(func() { cancel(); <-scheduled })
	return n
}

// makeBridge makes the bridge of the pods with the node's address. Nothing is
// forwarded between it and other networks.
func (n *Node) makeBridge() {
	n.t.Helper()
	used, err := net.InterfaceAddrs()
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range 250 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 253, byte((i*7 + os.Getpid()) % 250), 0}), 24)
		free := true
		for _, a := range used {
			if ip, ok := a.(*net.IPNet); ok && ip.Contains(p.Addr().AsSlice()) {
				free = false
			}
		}
		if free {
			n.subnet = p
			break
		}
	}
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.bridge}}
	if err := netlink.LinkAdd(link); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			n.t.Error(err)
		}
	})
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IP(n.address().AsSlice()), Mask: net.CIDRMask(24, 32)}}
	if err := netlink.AddrAdd(link, addr); err != nil {
		n.t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		n.t.Fatal(err)
	}
}

func (n *Node) address() netip.Addr { return n.subnet.Addr().Next() }

// hierarchies returns the directories of the control group hierarchies.
func hierarchies(t testing.TB) []string {
	t.Helper()
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	entries, err := os.ReadDir("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	seen := map[string]bool{}
	for _, e := range entries {
		dir, err := filepath.EvalSymlinks(filepath.Join("/sys/fs/cgroup", e.Name()))
		if err == nil && !seen[dir] && e.Name() != "unified" {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func (n *Node) makeCgroups() {
	n.t.Helper()
	n.t.Cleanup(func() { // the kubelet makes it, where version 2 is mounted beside version 1
		dir := filepath.Join("/sys/fs/cgroup/unified", n.cgroup)
		wait.NoError(n.t, "control group "+dir+" is removed", func() error { return removeCgroup(dir) })
	})
	for _, h := range hierarchies(n.t) {
		dir := filepath.Join(h, n.cgroup)
		if err := os.Mkdir(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() {
			wait.NoError(n.t, "control group "+dir+" is removed", func() error { return removeCgroup(dir) })
		})
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if b, err := os.ReadFile(filepath.Join(h, f)); err == nil {
				if err := os.WriteFile(filepath.Join(dir, f), b, 0o644); err != nil {
					n.t.Fatal(err)
				}
			}
		}
	}
}

// removeCgroup kills what runs in a control group and removes it.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return os.Remove(dir)
}

func (n *Node) startContainerd() {
	c, t := n.c, n.t
	t.Helper()
	c.write("net.d/10-test.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "test", "plugins": [
{"type": "bridge", "bridge": %q, "isGateway": false, "ipMasq": false,
 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q, "rangeStart": %q}]]}}]}`,
		n.bridge, c.path("ipam"), n.subnet, n.address().Next()))
	runsc := c.write("runsc.toml", fmt.Sprintf(`binary_name = %q
root = %q

[runsc_config]
network = "sandbox"
platform = "systrap"
overlay2 = "root:self"
cpu-num-from-quota = "true"
in-sandbox-cgroup = "v2"
`, filepath.Join(n.bin, "runsc"), c.path("runsc")))
	config := c.write("containerd.toml", fmt.Sprintf(`version = 3
root = %q
state = %q
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = %q

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
enable_unprivileged_ports = false
enable_unprivileged_icmp = false
enable_selinux = false

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%q]
conf_dir = %q

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runsc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc]
runtime_type = "io.containerd.runsc.v1"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc.options]
TypeUrl = "io.containerd.runsc.v1.options"
ConfigPath = %q
`, c.path("containerd"), c.path("state"), c.path("containerd.sock"), pauseImage, filepath.Join(n.bin, "cni"), c.path("net.d"), runsc))
	// What the kubelet writes to fixed paths and to sysctls stays in this mount namespace.
	script := c.write("mounts.sh", `set -e
dir=$1
mkdir -p "$dir"/sysctl "$dir"/lib/upper "$dir"/lib/work
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	copy=$dir/sysctl/$(basename $f)
	cat /proc/sys/$f >"$copy"
	mount --bind "$copy" /proc/sys/$f
done
mount -t tmpfs none /var/log
mount -t tmpfs none "$dir"/lib
mkdir "$dir"/lib/upper "$dir"/lib/work
mount -t overlay -o lowerdir=/var/lib,upperdir="$dir"/lib/upper,workdir="$dir"/lib/work overlay /var/lib
shift
exec "$@"
`)
	t.Setenv("PATH", n.bin+":"+os.Getenv("PATH"))
	t.Cleanup(n.endShims) // after containerd, so that no other one starts
	n.containerd = run(t, "containerd", "unshare", "-m", "--propagation", "private", "sh", script, c.dir,
		"containerd-cri", "--config", config, "--log-level", "info")
	wait.NoError(t, "containerd serves", func() (err error) {
		select {
		case <-n.containerd.ended:
			t.Fatalf("containerd ended: %s", n.containerd.out)
		default:
		}
		if n.client == nil {
			n.client, err = client.New(c.path("containerd.sock"), client.WithTimeout(time.Second))
			if err != nil {
				return err
			}
		}
		_, err = n.client.Version(context.Background())
		return err
	})
	t.Cleanup(func() { n.client.Close() })
}

// endShims ends the shims of pods that still exist. They outlive containerd, and are
// in no control group of the node.
func (n *Node) endShims() {
	socket := []byte("\x00" + n.c.path("containerd.sock") + "\x00")
	wait.NoError(n.t, "the node's shims have ended", func() error {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		for _, f := range lines {
			b, err := os.ReadFile(f)
			if err != nil || !bytes.Contains(b, []byte("containerd-shim-")) || !bytes.Contains(b, socket) {
				continue // another process, or one that has ended
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err != nil {
				return err
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return fmt.Errorf("shim %d runs", pid)
		}
		return nil
	})
}

func (n *Node) importImages() {
	t := n.t
	t.Helper()
	n.Import(pauseImage, executiontest.Image(t))
	agent, err := os.ReadFile(filepath.Join(n.bin, "runtime-agent"))
	if err != nil {
		t.Fatal(err)
	}
	n.Import(AgentImage, executiontest.ImageOf(t, map[string][]byte{"runtime-agent": agent}))
	d := n.Import("test.invalid/guest:1", executiontest.Image(t))
	n.Image = "test.invalid/guest@" + d.String()
	n.name(n.Image, "test.invalid/guest:1")
}

// Import gives the node an image.
func (n *Node) Import(name string, archive []byte) digest.Digest {
	n.t.Helper()
	ctx := namespaces.WithNamespace(context.Background(), criName)
	list, err := n.client.Import(ctx, bytes.NewReader(archive), client.WithDigestRef(func(d digest.Digest) string { return "import.invalid/x@" + d.String() }))
	if err != nil || len(list) != 1 {
		n.t.Fatalf("import %s: %d images, %v", name, len(list), err)
	}
	if err := client.NewImage(n.client, list[0]).Unpack(ctx, "overlayfs"); err != nil {
		n.t.Fatal(err)
	}
	n.name(name, list[0].Name)
	return list[0].Target.Digest
}

// name gives an image one more name.
func (n *Node) name(name, of string) {
	n.t.Helper()
	ctx := namespaces.WithNamespace(context.Background(), criName)
	image, err := n.client.ImageService().Get(ctx, of)
	if err == nil {
		_, err = n.client.ImageService().Create(ctx, images.Image{Name: name, Target: image.Target})
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *Node) startKubelet() {
	c, t := n.c, n.t
	t.Helper()
	resolv := c.write("resolv.conf", "nameserver 192.0.2.53\n")
	config := c.write("kubelet.json", fmt.Sprintf(`{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
"address": %q, "port": %s, "readOnlyPort": 0, "healthzPort": 0,
"authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"},
"cgroupDriver": "cgroupfs", "cgroupRoot": "/%s", "cgroupsPerQOS": true, "enforceNodeAllocatable": ["pods"],
"failCgroupV1": false, "failSwapOn": false, "oomScoreAdj": 0, "makeIPTablesUtilChains": false,
"containerRuntimeEndpoint": "unix://%s", "podLogsDir": %q, "volumePluginDir": %q, "resolvConf": %q,
"imageGCHighThresholdPercent": 100, "evictionHard": {"memory.available": "0%%", "nodefs.available": "0%%", "imagefs.available": "0%%", "nodefs.inodesFree": "0%%", "imagefs.inodesFree": "0%%"},
"syncFrequency": "10s", "registerNode": true, "rotateCertificates": false, "serverTLSBootstrap": false, "maxPods": 100}`,
		n.address(), freePort(t), n.cgroup, c.path("containerd.sock"), c.path("podlogs"), c.path("plugins"), resolv))
	n.kubelet = run(t, "kubelet", "nsenter", "-t", strconv.Itoa(n.containerd.Pid), "-m", "--",
		"kubelet", "--config", config, "--kubeconfig", c.kubeconfig("kubeconfig", c.token), "--root-dir", c.path("kubelet"), "--cert-dir", c.path("pki"),
		"--hostname-override", nodeName, "--node-ip", n.address().String(), "--v", "1")
	wait.NoError(t, "the node is ready", func() error {
		select {
		case <-n.kubelet.ended:
			t.Fatalf("kubelet ended: %s", n.kubelet.out)
		default:
		}
		node, err := c.Core.Nodes().Get(context.Background(), nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range node.Status.Conditions {
			if cond.Type == v1.NodeReady && cond.Status == v1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("it is %+v", node.Status.Conditions)
	})
}
