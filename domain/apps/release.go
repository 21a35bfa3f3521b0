package apps

import (
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/schema"
)

// ReleaseService is the service of the sandbox that runs a release command: the name for its logs.
const ReleaseService = "release"

// ReleaseTimeout is how long a release command may run.
const ReleaseTimeout = time.Hour

// ReleaseName returns the name of the sandbox that runs the release command of a version.
func ReleaseName(ver *app.AppVersion) string {
	return schema.ChildName(ver.Name, ReleaseService, schema.MaxName)
}

// ReleaseFor makes the sandbox that runs the release command of a version once, with the environment and the limits
// of its web service; a version without one has the defaults.
func ReleaseFor(a *app.App, ver *app.AppVersion) *sandbox.Sandbox {
	svc := app.Service{}
	svc.SetDefaults()
	if i := slices.IndexFunc(ver.Spec.Services, func(s app.Service) bool { return s.Name == app.DefaultService }); i >= 0 {
		svc = ver.Spec.Services[i]
	}
	svc.Name, svc.Command = ReleaseService, ver.Spec.Release
	return JobFor(a, ver, svc, ReleaseName(ver), ReleaseTimeout)
}

// JobFor makes the sandbox that runs the command of svc once to its end, with the image and environment of a version.
// It serves no port and belongs to no pool.
func JobFor(a *app.App, ver *app.AppVersion, svc app.Service, name string, timeout time.Duration) *sandbox.Sandbox {
	none := int64(0)
	svc.Port = &none
	pool := PoolFor(a, ver, &svc)
	sb := sandbox.NewSandbox()
	sb.Project, sb.Name, sb.Labels = a.Project, name, pool.Labels
	sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service = a.GetID(), ver.GetID(), svc.Name
	sb.Spec.TTL, sb.Spec.Template = &timeout, pool.Spec.Template
	return sb
}
