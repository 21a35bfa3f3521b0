// Package rpcserver serves the interfaces of api/*/rpc.yml. Its handlers decode,
// call package domain, and encode; permissions are declared in the YAML and
// enforced by pkg/rpc before a handler is called.
package rpcserver

import (
	"context"
	"io"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/history"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/certificates"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/domain/gitpush"
	domaininterpreter "miren.dev/runtime/domain/interpreter"
	"miren.dev/runtime/domain/metrics"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/previews"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/secrets"
	"miren.dev/runtime/domain/tasks"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/domain/webhooks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// Deps are the packages and components that the handlers call.
type Deps struct {
	Addons       *addons.Service
	Apps         *apps.Service
	Pushes       *gitpush.Service // nil: there are none
	Tasks        *tasks.Service
	Routes       *routes.Service
	Certificates *certificates.Service
	Sandboxes    *sandboxes.Service
	Templates    *templates.Service
	Nodes        *nodes.Service
	Disks        *disks.Service
	Executions   *executions.Service
	Secrets      *secrets.Service
	Quotas       *quotas.Store
	Policies     *policies.Store
	Previews     *previews.Service
	Webhooks     *webhooks.Service
	Events       *events.Service
	Metrics      *metrics.Service
	History      entity.History
	Software     Software
}

// Software writes the list of the software in an image, which it finds by its exact name,
// name@digest. name and version say in the list whose image it is.
type Software func(ctx context.Context, image, name, version string, w io.Writer) error

// Register makes s serve addons, apps, tasks, deploys, builds, routes, certificates, sandboxes, their files and
// interpreter, previews, templates, nodes, disks, executions, secrets, quotas,
// policies, webhooks, events, metrics and the history.
func Register(s *rpc.Server, d Deps) {
	addon.RegisterAddons(s, Addons(d.Addons))
	app.RegisterApps(s, &appHandler{d.Apps, d.Software})
	app.RegisterDeploys(s, &deployHandler{d.Apps, d.Pushes})
	app.RegisterBuilds(s, &buildHandler{d.Apps})
	app.RegisterTasks(s, Tasks(d.Tasks))
	app.RegisterRoutes(s, &routeHandler{d.Routes})
	certificate.RegisterCertificates(s, Certificates(d.Certificates))
	sandbox.RegisterSandboxes(s, &sandboxHandler{d.Sandboxes})
	sandbox.RegisterFiles(s, &fileHandler{d.Sandboxes.Files})
	sandbox.RegisterPreviews(s, Previews(d.Previews))
	sandbox.RegisterTemplates(s, &templateHandler{d.Templates, d.Software})
	interpreter.RegisterInterpreter(s, &interpreterHandler{&domaininterpreter.Service{
		Running: d.Sandboxes.RunningUnconfined, Node: d.Sandboxes.Node, Sealer: d.Sandboxes.Sealer,
	}})
	server.RegisterNodes(s, Nodes(d.Nodes))
	disk.RegisterDisks(s, &diskHandler{d.Disks})
	execution.RegisterExecutions(s, &executionHandler{d.Executions})
	secret.RegisterSecrets(s, Secrets(d.Secrets))
	webhook.RegisterWebhooks(s, Webhooks(d.Webhooks))
	event.RegisterEvents(s, Events(d.Events))
	core.RegisterQuotas(s, Quotas(d.Quotas))
	core.RegisterPolicies(s, Policies(d.Policies))
	history.RegisterHistory(s, History(d.History))
	metric.RegisterMetrics(s, Metrics(d.Metrics))
}

// caller returns the name of the identity that makes a call.
func caller(ctx context.Context) string { return rpc.IdentityFrom(ctx).Name }

// callerKey returns the id of the API key with which a call is made, "" without one.
func callerKey(ctx context.Context) id.APIKey { return id.APIKey(rpc.IdentityFrom(ctx).Key) }

// record encodes an entity for the wire.
func record(o schema.Object) (schema.Record, error) {
	rec, err := o.EntityKind().Encode(o)
	if err != nil {
		return schema.Record{}, err
	}
	return *rec, nil
}
