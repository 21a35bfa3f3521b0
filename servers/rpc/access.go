package rpcserver

import (
	"slices"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/controllers/apppreview"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/pkg/schema"
)

// Access declares what the operations that users call do in the store, the
// lease of `r sandbox run` included, and their name as a writer. Repair by hand
// (`r entity put`) may write every field and is not declared.
func Access() (name string, a kit.Access) {
	return "api", kit.Access{
		Reads: api.Kinds(),
		Creates: []*schema.Kind{
			addon.AddonKind, addon.AddonAttachmentKind, core.NodeKind, core.RunnerTokenKind, core.ProjectKind, core.UserKind, core.ClientCertificateKind, core.APIKeyKind, core.SSHKeyKind, app.AppKind, app.BuildKind, app.DeploymentKind, app.DeployLeaseKind, app.TaskRunKind, app.RouteKind, app.TCPRouteKind, certificate.CertificateKind, sandbox.SandboxKind,
			sandbox.TemplateKind, sandbox.TemplateVersionKind, sandbox.WarmPoolKind, sandbox.SnapshotKind,
			disk.DiskKind, disk.DiskSnapshotKind, disk.DiskCopyKind, execution.ExecutionKind, secret.SecretKind, webhook.WebhookKind, webhook.WebhookDeliveryKind,
		},
		Deletes: []*schema.Kind{core.RunnerTokenKind, core.ClientCertificateKind, core.APIKeyKind, core.SSHKeyKind, app.AppKind, app.RouteKind, app.TCPRouteKind, certificate.CertificateKind, sandbox.SandboxKind, sandbox.WarmPoolKind, sandbox.SnapshotKind, secret.SecretKind, webhook.WebhookKind,
			sandbox.TemplateKind, sandbox.TemplateVersionKind},
		Owns: slices.Concat(
			kit.Fields(addon.AddonKind, "spec"), kit.Fields(addon.AddonAttachmentKind, "spec"),
			kit.Fields(app.AppKind, "spec.env", "spec.secrets", "spec.scale", "spec.bounds", "spec.maintenance"), kit.Fields(app.DeploymentKind, "spec.cancel"),
			kit.Fields(app.RouteKind, "spec"), kit.Fields(app.TCPRouteKind, "spec"), kit.Fields(app.TaskRunKind, "spec.cancel"), kit.Fields(app.TaskScheduleKind, "spec.suspended"), kit.Fields(certificate.CertificateKind, "spec"), kit.Fields(certificate.CertificateOrderKind, "spec.requests"), kit.Fields(core.ProjectKind, "spec.quota", "spec.policy"), kit.Fields(core.UserKind, "spec"), kit.Fields(core.ClientCertificateKind, "spec"), kit.Fields(core.APIKeyKind, "spec", "status"), kit.Fields(core.SSHKeyKind, "spec"), kit.Fields(core.NodeKind, "spec.cordoned", "spec.runner", "spec.removed", "spec.apps"), kit.Fields(core.RunnerTokenKind, "spec"),
			kit.Fields(disk.DiskKind, "spec"), kit.Fields(disk.DiskSnapshotKind, "spec"), kit.Fields(disk.DiskCopyKind, "spec"), kit.Fields(execution.ExecutionKind, "spec"), kit.Fields(secret.SecretKind, "spec"), kit.Fields(webhook.WebhookKind, "spec"), kit.Fields(webhook.WebhookDeliveryKind, "spec.replays"),
			kit.Fields(sandbox.TemplateKind, "spec", "status"), kit.Fields(sandbox.TemplateVersionKind, "status"), kit.Fields(sandbox.WarmPoolKind, "spec"),
			kit.Fields(sandbox.SandboxKind, "spec.desired", "spec.stop_reason", "lease", "name", "labels", "spec.ttl", "spec.resume_ttl", "spec.idle_timeout", "spec.on_idle", "spec.template", "spec.warm_pool", "spec.claim",
				"spec.claimed_at", "spec.agent", "spec.origin", "spec.execution", "spec.api_key", "spec.only_node"),
			kit.Fields(sandbox.SnapshotKind, "spec.deleted")),
		Shares: append([]kit.Share{{
			Field: kit.Field{Kind: app.AppKind, Path: "status.active_deployment"}, Owner: "deployment",
			Why:  "to accept a deployment, together with its lease",
			When: func(_, after schema.Object) bool { return after.(*app.App).Status.ActiveDeployment != "" },
		}, scales("spec.replicas", "deployment"), scales("spec.autoscale", "deployment"), scales("spec.autoscaled", "autoscale")},
			apppreview.Shares("when a user ends a preview")...),
	}
}

// scales declares a field of a pool that the scale of its service changes.
func scales(path, owner string) kit.Share {
	return kit.Share{
		Field: kit.Field{Kind: sandbox.SandboxPoolKind, Path: path}, Owner: owner,
		Why: "to scale a service of the version that serves",
		When: func(before, _ schema.Object) bool {
			return before.(*sandbox.SandboxPool).Spec.State == sandbox.PoolStateActive
		},
	}
}
