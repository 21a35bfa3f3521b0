package mock

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/keys"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Size of the node, on which sandboxes use nothing.
const (
	nodeCPUMillis   = 10_000_000
	nodeMemoryBytes = 1 << 50
)

// register makes the node that sandboxes are placed on. Nothing watches whether it
// is alive: it is this process.
func register(ctx context.Context, s entity.Store) (id.Node, error) {
	n := core.NewNode()
	n.Name, n.Spec.Hostname, n.Spec.Arch = "mock", "mock", runtime.GOARCH
	n.Spec.CPUMillis, n.Spec.MemoryBytes = nodeCPUMillis, nodeMemoryBytes
	n.Status.Phase, n.Status.Instance = core.NodePhaseReady, "mock"
	err := entity.Create(ctx, s, n)
	return n.GetID(), errs.Wrap(err, "node")
}

// makeKey makes the key of the default project. Its secret follows from the seed.
func (p *plane) makeKey(ctx context.Context) (string, error) {
	project, err := projects.Find(ctx, p.store, projects.Default)
	if err != nil {
		return "", err
	}
	var secret [32]byte
	rand.Read(secret[:]) // never fails (crypto/rand)
	if p.s.cfg.Seed != 0 {
		secret = sha256.Sum256(fmt.Appendf(nil, "key of seed %d", p.s.cfg.Seed))
	}
	key := keys.Prefix + hex.EncodeToString(secret[:])
	hash := sha256.Sum256([]byte(key))
	sealed, err := p.sealer.Seal(hex.EncodeToString(hash[:]))
	if err != nil {
		return "", err
	}
	k := core.NewAPIKey()
	k.Project, k.Name = project, keyName
	k.Spec = core.APIKeySpec{Hash: sealed, Roles: []string{"admin@" + projects.Default}, CreatedBy: keyName}
	return key, errs.Wrap(entity.Create(ctx, p.store, k), "key")
}

// loopback are the networks in which receivers of webhooks may be although they are
// not public: those of this machine, where a program under test has its own.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// builds ends builds of templates: each succeeds with an image that does not exist.
type builds struct{ store entity.Store }

func (b builds) controller() kit.Controller {
	return kit.Controller{
		Name: "build", Kind: app.BuildKind, Reconcile: b.reconcile,
		Access: kit.Access{Owns: kit.Fields(app.BuildKind, "status")},
	}
}

func (b builds) reconcile(ctx context.Context, bid schema.ID) (time.Duration, error) {
	build, err := entity.Get[app.Build](ctx, b.store, bid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil || build.Status.Phase != app.BuildPhasePending && build.Status.Phase != app.BuildPhaseRunning {
		return 0, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	build.Status.Phase, build.Status.StartedAt, build.Status.EndedAt = app.BuildPhaseSucceeded, &now, &now
	if build.Spec.Cancel {
		build.Status.Phase = app.BuildPhaseCanceled
	} else {
		build.Status.Image = "mock.local/" + string(build.ID) + "@sha256:" + hex.EncodeToString(make([]byte, sha256.Size))
	}
	return 0, entity.UpdateStatus(ctx, b.store, build)
}

// noDisks refuses sandboxes with volumes, which a mock does not have.
type noDisks struct{}

// Mounts implements controllers/sandbox.Disks.
func (noDisks) Mounts(context.Context, *sandbox.Sandbox, []disks.Volume) ([]execution.Mount, error) {
	return nil, errs.New(errs.Unimplemented, "a mock server has no volumes")
}

// Release implements controllers/sandbox.Disks.
func (noDisks) Release(context.Context, id.Sandbox) error { return nil }
