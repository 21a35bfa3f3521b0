// Package appnet gives a node the table of the private networks of apps: the apps of
// each project, and their sandboxes on this node and on the runners that it reaches
// (package appnet of pkg).
//
// It makes the whole table after each change of an app or of one of its sandboxes. The
// node applies what differs, and keeps it while no server runs.
//
// In: app, app_version, node, sandbox. Out: nothing in the store.
package appnet

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Node applies the table; components/runsc does, and servers/runner.Peers for runners, too.
type Node interface {
	SetApps(ctx context.Context, apps []appnet.App) error
}

// Reconciler keeps the table of the node of a server.
type Reconciler struct {
	Store     entity.Store
	Informers *informer.Set
	Node      id.Node
	Network   Node

	mu       sync.Mutex
	versions map[schema.ID]*app.AppVersion // the active ones, which do not change
}

// indexApps has the sandboxes of apps.
const indexApps = "appnet"

// key is the one key: the table is made as a whole.
const key = "apps"

// Controller describes it to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	informer.Of[sandbox.Sandbox](r.Informers).AddIndex(indexApps, func(sb *sandbox.Sandbox) []string {
		if sb.Spec.App == "" || sb.Status.Phase.Ended() {
			return nil
		}
		return []string{string(sb.Spec.App)}
	})
	return kit.Controller{
		Name: "app-network", Reconcile: r.Reconcile,
		Watches: []kit.Source{
			kit.Map(func(*app.App) []schema.ID { return []schema.ID{key} }),
			kit.Map(func(sb *sandbox.Sandbox) []schema.ID {
				if sb.Spec.App == "" || sb.Spec.Node != r.Node && !sb.Spec.Runner {
					return nil
				}
				return []schema.ID{key}
			}),
			kit.Map(func(n *core.Node) []schema.ID {
				if !n.Spec.Runner {
					return nil
				}
				return []schema.ID{key}
			}),
		},
		Access: kit.Access{Reads: []*schema.Kind{app.AppVersionKind}},
	}
}

// elsewhere returns the runner that a sandbox is on, "" if it is on this node. ok is false if this
// server does not reach it.
func (r *Reconciler) elsewhere(sb *sandbox.Sandbox) (node id.Node, ok bool) {
	if !sb.Spec.Runner {
		return "", sb.Spec.Node == r.Node
	}
	n := informer.Of[core.Node](r.Informers).Get(schema.ID(sb.Spec.Node))
	return sb.Spec.Node, n != nil && (n.Spec.Server == "" || n.Spec.Server == r.Node)
}

// Reconcile makes the table.
func (r *Reconciler) Reconcile(ctx context.Context, _ schema.ID) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var apps []appnet.App
	seen := map[schema.ID]*app.AppVersion{}
	for _, a := range informer.Of[app.App](r.Informers).List() {
		entry := appnet.App{Project: string(a.Project), Name: a.Name}
		ver, err := r.version(ctx, schema.ID(a.Status.Active()))
		if err != nil {
			return 0, err
		}
		if ver != nil {
			seen[ver.ID] = ver
			for _, svc := range ver.Spec.Services {
				entry.Services = append(entry.Services, svc.Name)
			}
			if n := ver.Spec.Network; n != nil {
				entry.Restricted, entry.From = n.Restricted, n.AllowFrom
			}
		}
		for _, sb := range informer.Of[sandbox.Sandbox](r.Informers).ByIndex(indexApps, string(a.ID)) {
			node, ok := r.elsewhere(sb)
			if sb.Project != a.Project || !ok {
				continue
			}
			entry.Members = append(entry.Members, appnet.Member{
				Sandbox: string(sb.ID), Service: sb.Spec.Service, Node: string(node),
				Ready: ver != nil && sb.Spec.AppVersion == ver.GetID() && sb.Status.Phase == sandbox.SandboxPhaseRunning && sb.Status.Ready &&
					sb.Spec.Desired == sandbox.DesiredStateRunning,
			})
		}
		slices.SortFunc(entry.Members, func(a, b appnet.Member) int { return cmp.Compare(a.Sandbox, b.Sandbox) })
		apps = append(apps, entry)
	}
	slices.SortFunc(apps, func(a, b appnet.App) int {
		return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
	})
	r.versions = seen
	return 0, r.Network.SetApps(ctx, apps)
}

// version returns a version, nil if there is none.
func (r *Reconciler) version(ctx context.Context, vid schema.ID) (*app.AppVersion, error) {
	if vid == "" {
		return nil, nil
	}
	if v := r.versions[vid]; v != nil {
		return v, nil
	}
	v, err := entity.Get[app.AppVersion](ctx, r.Store, vid)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	return v, err
}
