// Package node keeps the entities of machines. Registrar registers this machine and
// renews its lease while the server runs; Liveness marks machines as down whose
// lease has lapsed.
//
//	node_lease there                  ready    (written by the node's Registrar)
//	gone for one more lease's time    down     (written by any server's Liveness)
//	down for EndAfter                 its sandboxes end with reason node
//
// The node is durable: only its status changes when its server stops, and its
// sandboxes stay placed on it. Its node_lease is bound to a store lease and is
// deleted when that lapses, by the database's clock. An unavailable store says
// nothing about nodes. Both write conditionally on the node as they read it, so a
// node that comes back in the same moment is ready.
package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/version"
)

const (
	// leaseTTL is how long a node counts as alive after it renewed its lease.
	leaseTTL = 30 * time.Second
	// overcommit is how many times the machine's CPU may be reserved. CPU is a share:
	// most sandboxes idle, and busy ones get less when they are many. Memory fills a
	// node, since it cannot be taken back.
	overcommit = 32
	// Sandboxes may not reserve a third of the machine's memory, within these
	// bounds, in bytes.
	minHeadroom = 512 << 20
	maxHeadroom = 1 << 30
	// A change of the free disk space by this share is reported.
	diskChange = 0.05
)

// Registrar keeps the node of this machine.
type Registrar struct {
	Store       entity.Store
	Instance    string // id of the installation, the node's name
	CPUMillis   int64  // 0: overcommit times the machine's
	MemoryBytes int64  // 0: the machine's less headroom
	StateDir    string // whose free space is reported
	KeepDisk    int64  // free space below which no sandboxes are placed here, in bytes
	Logger      *slog.Logger
	// IDFile holds the node's id on the machine; empty: no file. A store without that
	// node is another store, or an empty one: the sandboxes here must not be swept
	// because of it.
	IDFile string

	node id.Node
}

// registrar is the name of a Registrar as a writer.
const registrar = "registrar"

// Registration declares what a Registrar does in the store, and its name.
func Registration() (name string, a kit.Access) {
	return registrar, kit.Access{
		Reads:   []*schema.Kind{core.NodeKind, core.NodeLeaseKind},
		Creates: []*schema.Kind{core.NodeKind, core.NodeLeaseKind},
		Owns:    kit.Fields(core.NodeKind, "spec.arch", "spec.hostname", "spec.cpu_millis", "spec.memory_bytes", "status"),
	}
}

// Register creates or updates the node and marks it ready. It returns its id.
func (r *Registrar) Register(ctx context.Context) (id.Node, error) {
	cpu, mem, err := r.capacity()
	if err != nil {
		return "", err
	}
	hostname, err := os.Hostname()
	if err != nil {
		hostname = r.Instance
	}
	n, err := entity.ByName[core.Node](ctx, r.Store, "", r.Instance)
	if errs.Is(err, errs.NotFound) {
		if err := r.refuseOtherStore(); err != nil {
			return "", err
		}
		n = core.NewNode()
		n.Name = r.Instance
		n.Spec.Arch, n.Spec.Hostname, n.Spec.CPUMillis, n.Spec.MemoryBytes = runtime.GOARCH, hostname, cpu, mem
		err = entity.Create(ctx, r.Store, n)
	}
	if err != nil {
		return "", errs.Wrap(err, "register this node")
	}
	r.node = n.GetID()
	if err := r.remember(); err != nil {
		return "", err
	}
	if s := n.Spec; s.Arch != runtime.GOARCH || s.Hostname != hostname || s.CPUMillis != cpu || s.MemoryBytes != mem {
		_, err = entity.ModifySpec(ctx, r.Store, r.node, func(n *core.Node) error {
			n.Spec.Arch, n.Spec.Hostname, n.Spec.CPUMillis, n.Spec.MemoryBytes = runtime.GOARCH, hostname, cpu, mem
			return nil
		})
		if err != nil {
			return "", errs.Wrap(err, "register this node")
		}
	}
	return r.node, errs.Wrap(r.renew(ctx), "lease of this node")
}

// refuseOtherStore fails if this machine is a node that the store does not know.
func (r *Registrar) refuseOtherStore() error {
	if r.IDFile == "" {
		return nil
	}
	b, err := os.ReadFile(r.IDFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.New(errs.Unavailable, "which node this machine is: %w", err)
	}
	return errs.New(errs.FailedPrecondition, "this machine is %s, which the store does not know: it is another store, or it lost its data", strings.TrimSpace(string(b))).
		WithHint("check store.url or restore the store; to begin anew with an empty one, ending what runs here, remove %s", r.IDFile)
}

func (r *Registrar) remember() error {
	if r.IDFile == "" {
		return nil
	}
	if err := atomicfile.Write(r.IDFile, []byte(r.node+"\n"), 0o644); err != nil {
		return errs.New(errs.Unavailable, "remember which node this machine is: %w", err)
	}
	return nil
}

func (r *Registrar) capacity() (cpu, mem int64, err error) {
	cpu, mem = r.CPUMillis, r.MemoryBytes
	if cpu == 0 {
		cpu = int64(runtime.NumCPU()) * 1000 * overcommit
	}
	if mem == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return 0, 0, errs.New(errs.Internal, "size of the machine: %w", err)
		}
		mem = reservable(int64(info.Totalram) * int64(info.Unit))
	}
	return cpu, mem, nil
}

// reservable is how much of a machine's memory sandboxes may reserve.
func reservable(total int64) int64 {
	headroom := min(max(total/3, minHeadroom), maxHeadroom)
	return max(total-headroom, total/4)
}

// disk returns the free space of the state directory.
func (r *Registrar) disk() (free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(r.StateDir, &st); err != nil {
		return 0, errs.New(errs.Unavailable, "free space of %s: %w", r.StateDir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// worthReporting reports whether a change of free space is worth a report.
func worthReporting(before *int64, now int64) bool {
	if before == nil {
		return true
	}
	d := float64(now - *before)
	return d > diskChange*float64(*before) || -d > diskChange*float64(*before)
}

// renew renews the lease, or makes a new one, and corrects the status.
func (r *Registrar) renew(ctx context.Context) error {
	lease, err := r.renewLease(ctx)
	if err != nil {
		return err
	}
	n, err := entity.Get[core.Node](ctx, r.Store, r.node)
	if err != nil {
		return err
	}
	free, err := r.disk()
	if err != nil {
		return err
	}
	full := free < r.KeepDisk
	if n.Status.DiskFull == full && !worthReporting(n.Status.DiskFreeBytes, free) && n.Status.Phase == core.NodePhaseReady && n.Status.Lease == string(lease) && n.Status.Version == version.Get().Version && n.Status.DownSince == nil {
		return nil
	}
	now := time.Now()
	_, err = entity.ModifyStatus(ctx, r.Store, r.node, func(n *core.Node) error {
		n.Status = core.NodeStatus{
			Phase: core.NodePhaseReady, Lease: string(lease), Instance: r.Instance, Version: version.Get().Version, LastSeen: &now,
			DiskFreeBytes: &free, DiskFull: full,
		}
		return nil
	})
	if err == nil && full != n.Status.DiskFull {
		r.Logger.Warn("free space of the state directory crossed node.keep_disk_bytes", "free_bytes", free, "keep_bytes", r.KeepDisk, "full", full)
	}
	if err == nil && n.Status.Phase != core.NodePhaseReady {
		r.Logger.Info("node is ready", "node", string(r.node), "previous", string(n.Status.Phase))
	}
	return err
}

// renewLease renews the store lease of the node's node_lease, whichever server of this
// node granted it, or makes both.
func (r *Registrar) renewLease(ctx context.Context) (schema.LeaseID, error) {
	l, err := nodes.LeaseOf(ctx, r.Store, r.node)
	if err == nil {
		if _, err = r.Store.KeepAlive(ctx, l.Lease); err == nil {
			return l.Lease, nil
		}
	}
	if !errs.Is(err, errs.NotFound) {
		return "", err
	}
	lease, err := r.Store.Grant(ctx, leaseTTL)
	if err != nil {
		return "", err
	}
	l = core.NewNodeLease()
	l.Name, l.Lease, l.Spec.Node = nodes.LeaseName(r.node), lease.ID, r.node
	if err := entity.Create(ctx, r.Store, l); err != nil {
		if rerr := r.Store.Revoke(context.WithoutCancel(ctx), lease.ID); rerr != nil {
			r.Logger.Debug("revoke lease", "lease", string(lease.ID), "error", rerr)
		}
		return "", err
	}
	return lease.ID, nil
}

// Run renews the node's lease until ctx ends.
func (r *Registrar) Run(ctx context.Context) error {
	next := leaseTTL / 3
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
		next = leaseTTL / 3
		if err := r.renew(ctx); err != nil && ctx.Err() == nil {
			r.Logger.Warn("renew the lease of this node", "error", err)
			next = time.Second
		}
	}
}
