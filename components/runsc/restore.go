package runsc

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// fromSnapshot returns the snapshot that a specification names, if any, and completes the specification from it. The
// error says why this node cannot restore it.
func (d *Driver) fromSnapshot(s execution.Spec) (execution.Spec, *snapshotRecord, error) {
	if s.Restore == "" {
		return s, nil, nil
	}
	if err := agentdriver.CheckID(s.Restore); err != nil {
		return s, nil, err
	}
	r, err := d.snapshotRecord(s.Restore)
	if err != nil {
		return s, nil, err
	}
	if s, err = inherit(s, r); err != nil {
		return s, nil, err
	}
	return s, r, d.checkRestore(r)
}

// inherit sets the fields that are the snapshot's.
func inherit(s execution.Spec, r *snapshotRecord) (execution.Spec, error) {
	of := r.Spec
	for _, f := range []struct {
		name string
		same bool
	}{
		{"image", s.Image == "" || s.Image == of.Image},
		{"command", len(s.Command) == 0 || slices.Equal(s.Command, of.Command)},
		{"idle", !s.Idle || of.Idle},
		{"working directory", s.WorkDir == "" || s.WorkDir == of.WorkDir},
		{"user", s.User == "" || s.User == of.User},
		{"processes", s.PIDs == 0 || s.PIDs == of.PIDs},
		{"disk", s.DiskBytes == 0 || s.DiskBytes == of.DiskBytes},
		// A snapshot of an earlier version has none of these limits.
		{"number of files", s.DiskFiles == 0 || of.DiskFiles == 0 || s.DiskFiles == of.DiskFiles},
		{"number of open files", s.OpenFiles == 0 || of.OpenFiles == 0 || s.OpenFiles == of.OpenFiles},
		{"size of files", s.FileBytes == 0 || of.FileBytes == 0 || s.FileBytes == of.FileBytes},
		{"read-only root", !s.ReadOnlyRoot || of.ReadOnlyRoot},
		{"set of capabilities", s.Capabilities == execution.CapabilitiesNone || s.Capabilities == of.Capabilities},
	} {
		if !f.same {
			return s, errs.New(errs.InvalidArgument, "sandbox %s: its %s is not that of snapshot %s, from which it is restored", s.ID, f.name, r.ID).
				WithHint("leave it empty: it is the snapshot's")
		}
	}
	sameMount := func(a, b execution.Mount) bool { return a.Target == b.Target && a.ReadOnly == b.ReadOnly }
	if !slices.EqualFunc(s.Mounts, of.Mounts, sameMount) {
		return s, errs.New(errs.InvalidArgument, "sandbox %s: its mounts are not on the targets of those of snapshot %s, from which it is restored", s.ID, r.ID).
			WithHint("name a directory for each of the %d mounts of the snapshot", len(of.Mounts))
	}
	s.Image, s.Command, s.Idle, s.WorkDir, s.User = of.Image, of.Command, of.Idle, of.WorkDir, of.User
	s.PIDs, s.DiskBytes, s.ReadOnlyRoot, s.Capabilities = of.PIDs, of.DiskBytes, of.ReadOnlyRoot, of.Capabilities
	s.DiskFiles, s.OpenFiles, s.FileBytes = of.DiskFiles, of.OpenFiles, of.FileBytes
	s.Egress = cmp.Or(s.Egress, of.Egress)
	return s, nil
}

// checkRestore returns FailedPrecondition if this node cannot restore the snapshot.
func (d *Driver) checkRestore(r *snapshotRecord) error {
	if err := d.checkMachine(r); err != nil {
		return err
	}
	return errs.Wrap(d.hub.CheckBinary(r.Agent), "snapshot %s", r.ID)
}

// checkMachine returns FailedPrecondition if this node cannot restore the snapshot, whatever files it has.
func (d *Driver) checkMachine(r *snapshotRecord) error {
	b, err := d.backend(d.cfg.Backend)
	if err == nil {
		err = b.canSnapshot()
	}
	if err != nil {
		return err
	}
	version, err := d.runscVersion()
	if err != nil {
		return err
	}
	if r.RunscVersion != version {
		return errs.New(errs.FailedPrecondition, "snapshot %s was taken by runsc %s; this node has %s", r.ID, r.RunscVersion, version).
			WithHint("snapshots cannot be restored by another version of runsc: create the sandbox anew")
	}
	features, err := cpuFeatures()
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(r.CPUFeatures), func(f string) bool {
		_, found := slices.BinarySearch(features, f)
		return found
	})
	if len(missing) > 0 {
		return errs.New(errs.FailedPrecondition, "snapshot %s was taken on a CPU with features that this one lacks: %s", r.ID, strings.Join(missing, " ")).
			WithHint("restore it on a machine with such a CPU")
	}
	return nil
}

// runscVersion returns the version of runsc on this node.
func (d *Driver) runscVersion() (string, error) {
	info, err := buildinfo.ReadFile(filepath.Join(d.cfg.BinDir, "runsc"))
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "version of runsc: %w", err)
	}
	return fmt.Sprintf("%s %s", info.Main.Version, info.GoVersion), nil
}

// setupIdentity gives a restored sandbox its own identity. Its host name came with its specification, unless a claim had
// set the snapshot's; its token and its environment came with the configuration of its agent; entropy and clocks are the
// host's.
func (cr *creation) setupIdentity(ctx context.Context) error {
	if cr.snapshot == nil {
		return nil
	}
	now := etcFiles(cr.d.cfg.Network.Files(hostname(cr.spec), cr.network.Address))
	identity := agent.Identity{Hostname: hostname(cr.spec)}
	for name, content := range now {
		path := "/etc/" + name
		identity.Files = append(identity.Files, agent.IdentityFile{Path: path, Old: cr.snapshot.Files[path], New: string(content)})
	}
	err := cr.conn.Identify(ctx, identity)
	if errs.Is(err, errs.PermissionDenied) {
		if err = cr.backend.setHostname(ctx, cr.spec.ID, identity.Hostname); err == nil {
			err = cr.conn.Identify(ctx, identity)
		}
	}
	if errs.Is(err, errs.FailedPrecondition) {
		// A full disk must not keep a sandbox from being resumed.
		cr.d.logger.Warn("a restored sandbox keeps a file of /etc of the sandbox in the snapshot", "sandbox", cr.spec.ID, "error", err)
		return nil
	}
	return cr.unlessEnded(err)
}

// unlessEnded returns nil if the restored sandbox has ended: a main process that ended while it was suspended ends its
// sandbox as soon as that has its log again.
func (cr *creation) unlessEnded(err error) error {
	if err == nil || cr.snapshot == nil {
		return err
	}
	if _, none := cr.d.hub.Exit(cr.spec.ID); none != nil {
		return err
	}
	return nil
}
