package app

import (
	"slices"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
)

// DiskUsers returns the names of the apps that use a disk, in order: a pool of
// such an app that is not retired mounts it.
func DiskUsers(d id.Disk, apps []*App, pools []*sandbox.SandboxPool) []string {
	var names []string
	for _, a := range apps {
		if slices.ContainsFunc(pools, func(p *sandbox.SandboxPool) bool {
			return p.Spec.App == a.GetID() && p.Spec.State != sandbox.PoolStateRetired &&
				slices.ContainsFunc(p.Spec.Template.Volumes, func(v sandbox.Volume) bool { return v.Disk == d })
		}) {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names
}
