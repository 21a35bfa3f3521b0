package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/history"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// tenant holds the names and ids of a project that a request can contain.
type tenant struct {
	project   string
	projectID schema.ID
	app       *app.App
	build     *app.Build
	deploy    *app.Deployment
	run       *app.TaskRun
	sandbox   *sandbox.Sandbox
	snapshot  *sandbox.Snapshot
	preview   *sandbox.Preview
}

// newTenant creates an app with everything that belongs to one, in a project.
func (e *frontEnv) newTenant(project string) *tenant {
	e.t.Helper()
	ctx := e.t.Context()
	if err := projects.Ensure(ctx, e.c.store, project); err != nil {
		e.t.Fatal(err)
	}
	pid, err := projects.Find(ctx, e.c.store, project)
	if err != nil {
		e.t.Fatal(err)
	}
	x := &tenant{project: project, projectID: pid, app: app.NewApp(), build: app.NewBuild(), deploy: app.NewDeployment(), sandbox: sandbox.NewSandbox()}
	x.app.Name = fmt.Sprintf("a%d", time.Now().UnixNano())
	create := func(o schema.Object) {
		e.t.Helper()
		o.GetMeta().Project = pid
		if err := entity.Create(ctx, e.c.store, o); err != nil {
			e.t.Fatal(err)
		}
	}
	create(x.app)
	x.build.Spec.App, x.build.Spec.Source, x.build.Status.Phase = x.app.GetID(), "src", app.BuildPhaseSucceeded
	create(x.build)
	x.deploy.Spec.App, x.deploy.Status.Phase = x.app.GetID(), app.DeploymentPhaseSucceeded
	create(x.deploy)
	x.run = app.NewTaskRun()
	x.run.Spec.App, x.run.Spec.Task, x.run.Spec.Trigger = x.app.GetID(), "t", app.TaskTriggerUser
	create(x.run)
	x.sandbox.Spec.Template.Image, x.sandbox.Status.Phase = "img", sandbox.SandboxPhaseStopped
	create(x.sandbox)
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = x.app.Name, "amd64", 1000, 1<<30
	if err := entity.Create(ctx, e.c.store, n); err != nil {
		e.t.Fatal(err)
	}
	x.snapshot = sandbox.NewSnapshot()
	x.snapshot.Spec.Sandbox, x.snapshot.Spec.Node, x.snapshot.Spec.Template.Image = x.sandbox.GetID(), n.GetID(), "img"
	x.snapshot.Status.Phase = sandbox.SnapshotPhaseReady
	create(x.snapshot)
	x.preview = sandbox.NewPreview()
	x.preview.Spec.Sandbox, x.preview.Spec.Port, x.preview.Spec.Key = x.sandbox.GetID(), 80, []byte("key")
	create(x.preview)
	return x
}

// answer says how a method treats a caller whose roles are bound to projects:
// refuse it (cluster), accept it without a project (any), or decide by the
// project of the request.
type answer struct {
	rule    rpc.ProjectRule
	request func(x *tenant) any
}

func byApp[T any](f func(project, app string) *T) answer {
	return answer{rpc.ProjectRequest, func(x *tenant) any { return f(x.project, x.app.Name) }}
}

func bySandbox(f func(x *tenant) any) answer { return answer{rpc.ProjectRequest, f} }

var (
	forCluster = answer{rule: rpc.ProjectCluster}
	forAny     = answer{rule: rpc.ProjectAny}
	appRequest = byApp(func(p, a string) *app.AppRequest { return &app.AppRequest{Project: p, App: a} })

	fileRequest      = bySandbox(func(x *tenant) any { return &sandbox.FileRequest{Sandbox: x.sandbox.GetID(), Path: "/"} })
	executionRequest = byApp(func(p, a string) *execution.ExecutionRequest {
		return &execution.ExecutionRequest{Project: p, Execution: a}
	})

	snapshotRequest = byApp(func(p, a string) *disk.SnapshotDiskRequest {
		return &disk.SnapshotDiskRequest{Project: p, Disk: a, Snapshot: "s"}
	})
)

var attachRequest = byApp(func(p, a string) *addon.AttachAddonRequest {
	return &addon.AttachAddonRequest{Project: p, Addon: "db", App: a}
})

var addonBackupRequest = byApp(func(p, a string) *addon.AddonBackupRequest {
	return &addon.AddonBackupRequest{Project: p, Addon: a, Backup: "b"}
})

var webhookRequest = byApp(func(p, a string) *webhook.WebhookRequest { return &webhook.WebhookRequest{Project: p, Webhook: a} })

var previewRequest = bySandbox(func(x *tenant) any { return &sandbox.PreviewRequest{Preview: x.preview.GetID()} })

var contextRequest = bySandbox(func(x *tenant) any {
	return &interpreter.ContextRequest{Sandbox: x.sandbox.GetID(), Context: "python"}
})

// answers lists every method; a new method needs an entry here.
var answers = map[string]answer{
	"addon.Addons/Create": byApp(func(p, a string) *addon.CreateAddonRequest {
		return &addon.CreateAddonRequest{Project: p, Addon: a, Engine: addon.EnginePostgres}
	}),
	"addon.Addons/Attach":       attachRequest,
	"addon.Addons/Detach":       attachRequest,
	"addon.Addons/Rotate":       byApp(func(p, a string) *addon.AddonRequest { return &addon.AddonRequest{Project: p, Addon: a} }),
	"addon.Addons/Backup":       byApp(func(p, a string) *addon.BackupAddonRequest { return &addon.BackupAddonRequest{Project: p, Addon: a} }),
	"addon.Addons/DeleteBackup": addonBackupRequest,
	"addon.Addons/Restore":      addonBackupRequest,
	"addon.Addons/Schedule": byApp(func(p, a string) *addon.ScheduleAddonRequest {
		return &addon.ScheduleAddonRequest{Project: p, Addon: a}
	}),
	"addon.Addons/Wait":   byApp(func(p, a string) *addon.WaitAddonRequest { return &addon.WaitAddonRequest{Project: p, Addon: a} }),
	"addon.Addons/Delete": byApp(func(p, a string) *addon.DeleteAddonRequest { return &addon.DeleteAddonRequest{Project: p, Addon: a} }),

	"app.Apps/Create":   appRequest,
	"app.Apps/Delete":   appRequest,
	"app.Apps/SetEnv":   byApp(func(p, a string) *app.SetEnvRequest { return &app.SetEnvRequest{Project: p, App: a} }),
	"app.Apps/Maintain": byApp(func(p, a string) *app.MaintainRequest { return &app.MaintainRequest{Project: p, App: a} }),
	"app.Apps/Scale":    byApp(func(p, a string) *app.ScaleRequest { return &app.ScaleRequest{Project: p, App: a} }),
	"app.Apps/Rollback": byApp(func(p, a string) *app.RollbackRequest { return &app.RollbackRequest{Project: p, App: a} }),
	"app.Apps/Promote":  byApp(func(p, a string) *app.PromoteRequest { return &app.PromoteRequest{Project: p, App: a} }),
	"app.Apps/Restart":  byApp(func(p, a string) *app.RestartRequest { return &app.RestartRequest{Project: p, App: a} }),
	"app.Apps/Cancel":   appRequest,

	"app.Tasks/Run": byApp(func(p, a string) *app.RunTaskRequest { return &app.RunTaskRequest{Project: p, App: a, Task: "t"} }),
	"app.Tasks/Suspend": byApp(func(p, a string) *app.SuspendTaskRequest {
		return &app.SuspendTaskRequest{Project: p, App: a, Task: "t"}
	}),
	"app.Tasks/Cancel": {rpc.ProjectRequest, func(x *tenant) any { return &app.TaskRunRequest{TaskRun: x.run.GetID()} }},

	"app.Deploys/PlanUpload": forAny,
	"app.Deploys/Upload":     forAny,
	"app.Deploys/Deploy": byApp(func(p, a string) *app.DeployRequest {
		return &app.DeployRequest{Project: p, App: a, Create: true, Source: "none"}
	}),
	"app.Deploys/Follow": {rpc.ProjectRequest, func(x *tenant) any { return &app.FollowRequest{Deployment: x.deploy.GetID()} }},
	"app.Deploys/Cancel": {rpc.ProjectRequest, func(x *tenant) any { return &app.DeploymentRequest{Deployment: x.deploy.GetID()} }},
	"app.Builds/Logs":    {rpc.ProjectRequest, func(x *tenant) any { return &app.BuildLogsRequest{Build: x.build.GetID()} }},
	"app.Routes/Set": byApp(func(p, a string) *app.SetRouteRequest {
		return &app.SetRouteRequest{Project: p, App: a, Host: a + ".example.com"}
	}),
	"app.Routes/Configure": byApp(func(p, a string) *app.ConfigureRouteRequest {
		return &app.ConfigureRouteRequest{Project: p, Host: a + ".example.com"}
	}),
	"app.Routes/SetTCP": byApp(func(p, a string) *app.SetTCPRouteRequest {
		return &app.SetTCPRouteRequest{Project: p, App: a, Port: 20000}
	}),
	"app.Routes/DeleteTCP": byApp(func(p, _ string) *app.DeleteTCPRouteRequest {
		return &app.DeleteTCPRouteRequest{Project: p, Port: 20000}
	}),
	"app.Routes/Delete": byApp(func(p, a string) *app.DeleteRouteRequest {
		return &app.DeleteRouteRequest{Project: p, Host: a + ".example.com"}
	}),

	"certificate.Certificates/Set": byApp(func(p, a string) *certificate.SetCertificateRequest {
		return &certificate.SetCertificateRequest{Project: p, Certificate: a, Chain: "none", Key: "none"}
	}),
	"certificate.Certificates/Delete": byApp(func(p, a string) *certificate.CertificateRequest {
		return &certificate.CertificateRequest{Project: p, Certificate: a}
	}),
	"certificate.Certificates/Renew": byApp(func(p, a string) *certificate.RenewRequest {
		return &certificate.RenewRequest{Project: p, Host: a}
	}),
	"certificate.Certificates/Served": forCluster, "app.Routes/Passwords": forCluster,

	"core.Users/Create": forCluster,
	"core.Users/Set":    forCluster,

	"core.Keys/Create": byApp(func(p, a string) *core.CreateKeyRequest { return &core.CreateKeyRequest{Project: p, Name: a} }),
	"core.Keys/Show":   byApp(func(p, a string) *core.KeyRequest { return &core.KeyRequest{Project: p, Name: a} }),
	"core.Keys/Delete": byApp(func(p, a string) *core.KeyRequest { return &core.KeyRequest{Project: p, Name: a} }),

	"disk.Disks/Create": byApp(func(p, a string) *disk.CreateDiskRequest { return &disk.CreateDiskRequest{Project: p, Disk: a} }),
	"disk.Disks/Clone": byApp(func(p, a string) *disk.CloneDiskRequest {
		return &disk.CloneDiskRequest{Project: p, Source: a, Disk: "clone"}
	}),
	"disk.Disks/Snapshot":       snapshotRequest,
	"disk.Disks/DeleteSnapshot": snapshotRequest,
	"disk.Disks/Schedule":       byApp(func(p, a string) *disk.ScheduleDiskRequest { return &disk.ScheduleDiskRequest{Project: p, Disk: a} }),
	"disk.Disks/Resize":         byApp(func(p, a string) *disk.ResizeDiskRequest { return &disk.ResizeDiskRequest{Project: p, Disk: a} }),
	"disk.Disks/Copy": byApp(func(p, a string) *disk.CopyDiskRequest {
		return &disk.CopyDiskRequest{Project: p, Disk: a, Store: "/none"}
	}),
	"disk.Disks/DeleteCopy": byApp(func(p, a string) *disk.DeleteCopyRequest { return &disk.DeleteCopyRequest{Project: p, Copy: a} }),
	"disk.Disks/Restore": byApp(func(p, a string) *disk.RestoreDiskRequest {
		return &disk.RestoreDiskRequest{Project: p, Copy: a, Disk: "restored"}
	}),
	"disk.Disks/Delete": byApp(func(p, a string) *disk.DiskRequest { return &disk.DiskRequest{Project: p, Disk: a} }),

	"secret.Secrets/Set": byApp(func(p, a string) *secret.SetSecretRequest {
		return &secret.SetSecretRequest{Project: p, Secret: a, Value: "value", Hosts: []string{"api.example"}}
	}),
	"secret.Secrets/Delete": byApp(func(p, a string) *secret.SecretRequest { return &secret.SecretRequest{Project: p, Secret: a} }),

	"webhook.Webhooks/Create": byApp(func(p, a string) *webhook.CreateWebhookRequest {
		return &webhook.CreateWebhookRequest{Project: p, Webhook: a, URL: "https://example.com"}
	}),
	"webhook.Webhooks/Update": byApp(func(p, a string) *webhook.UpdateWebhookRequest {
		return &webhook.UpdateWebhookRequest{Project: p, Webhook: a}
	}),
	"webhook.Webhooks/Delete":       webhookRequest,
	"webhook.Webhooks/RotateSecret": webhookRequest,
	"webhook.Webhooks/Test":         webhookRequest,
	"webhook.Webhooks/Replay": byApp(func(p, a string) *webhook.ReplayRequest {
		return &webhook.ReplayRequest{Project: p, Webhook: a}
	}),

	"event.Events/List":   byApp(func(p, _ string) *event.ListRequest { return &event.ListRequest{Project: p, Limit: 1} }),
	"event.Events/Follow": byApp(func(p, _ string) *event.FollowRequest { return &event.FollowRequest{Project: p} }),

	"metric.Metrics/App":     byApp(func(p, a string) *metric.AppRequest { return &metric.AppRequest{Project: p, App: a} }),
	"metric.Metrics/Sandbox": bySandbox(func(x *tenant) any { return &metric.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"metric.Metrics/Node":    forCluster,

	"core.Quotas/Show": byApp(func(p, _ string) *core.QuotaRequest { return &core.QuotaRequest{Project: p} }),
	"core.Quotas/Set":  forCluster,

	"core.Policies/Show":  byApp(func(p, _ string) *core.PolicyRequest { return &core.PolicyRequest{Project: p} }),
	"core.Policies/Set":   forCluster,
	"core.Policies/Clear": forCluster,
	"core.Policies/Report": {rpc.ProjectHandler, func(x *tenant) any {
		return &core.PolicyReportRequest{Project: x.project}
	}},

	"sandbox.Sandboxes/Run": byApp(func(p, _ string) *sandbox.RunRequest { return &sandbox.RunRequest{Project: p} }),
	"sandbox.Sandboxes/RunOnce": byApp(func(p, _ string) *sandbox.RunOnceRequest {
		return &sandbox.RunOnceRequest{Sandbox: sandbox.RunRequest{Project: p}}
	}),
	"sandbox.Sandboxes/RunCode": byApp(func(p, _ string) *sandbox.RunCodeRequest {
		return &sandbox.RunCodeRequest{Sandbox: sandbox.RunRequest{Project: p}, Language: "python", Code: []byte("1")}
	}),
	"sandbox.Sandboxes/Pause":     bySandbox(func(x *tenant) any { return &sandbox.PauseRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Resume":    bySandbox(func(x *tenant) any { return &sandbox.PauseRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/CheckExec": bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Extend":    bySandbox(func(x *tenant) any { return &sandbox.ExtendRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/SetIdle":   bySandbox(func(x *tenant) any { return &sandbox.IdleRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/SetEgress": bySandbox(func(x *tenant) any {
		return &sandbox.EgressRequest{Sandbox: x.sandbox.GetID(), Egress: sandbox.Egress{Mode: sandbox.EgressModeNone}}
	}),
	"sandbox.Sandboxes/EgressLog": bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Snapshot":  bySandbox(func(x *tenant) any { return &sandbox.SnapshotRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Fork":      bySandbox(func(x *tenant) any { return &sandbox.ForkRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/DeleteSnapshot": bySandbox(func(x *tenant) any {
		return &sandbox.DeleteSnapshotRequest{Snapshot: x.snapshot.GetID()}
	}),
	"interpreter.Interpreter/Run":       bySandbox(func(x *tenant) any { return &interpreter.RunRequest{Sandbox: x.sandbox.GetID(), Code: "1"} }),
	"interpreter.Interpreter/Create":    bySandbox(func(x *tenant) any { return &interpreter.CreateContextRequest{Sandbox: x.sandbox.GetID()} }),
	"interpreter.Interpreter/List":      bySandbox(func(x *tenant) any { return &interpreter.ContextsRequest{Sandbox: x.sandbox.GetID()} }),
	"interpreter.Interpreter/Interrupt": contextRequest,
	"interpreter.Interpreter/Restart":   contextRequest,
	"interpreter.Interpreter/Delete":    contextRequest,

	"sandbox.Previews/Create": bySandbox(func(x *tenant) any {
		return &sandbox.CreatePreviewRequest{Sandbox: x.sandbox.GetID()}
	}),
	"sandbox.Previews/Sign":   bySandbox(func(x *tenant) any { return &sandbox.SignPreviewRequest{Preview: x.preview.GetID()} }),
	"sandbox.Previews/Delete": previewRequest,
	"sandbox.Previews/Dial":   bySandbox(func(x *tenant) any { return &sandbox.DialPreviewRequest{Preview: x.preview.GetID(), Port: 80} }),
	"sandbox.Previews/Wake":   previewRequest,

	"sandbox.Templates/List": byApp(func(p, _ string) *sandbox.TemplatesRequest { return &sandbox.TemplatesRequest{Project: p} }),
	"sandbox.Templates/Show": byApp(func(p, a string) *sandbox.TemplateRequest {
		return &sandbox.TemplateRequest{Project: p, Template: a}
	}),
	"sandbox.Templates/Build": byApp(func(p, a string) *sandbox.BuildTemplateRequest {
		return &sandbox.BuildTemplateRequest{Project: p, Name: a, Image: "runtime/sandbox:base"}
	}),
	"sandbox.Templates/Wait": byApp(func(p, a string) *sandbox.TemplateRequest {
		return &sandbox.TemplateRequest{Project: p, Template: a}
	}),
	"sandbox.Templates/Tag": byApp(func(p, a string) *sandbox.TagTemplateRequest {
		return &sandbox.TagTemplateRequest{Project: p, Template: a + ":1", Tag: "latest"}
	}),
	"sandbox.Templates/Alias": byApp(func(p, a string) *sandbox.AliasTemplateRequest {
		return &sandbox.AliasTemplateRequest{Project: p, Template: a, Alias: "b"}
	}),
	"sandbox.Templates/Delete": byApp(func(p, a string) *sandbox.TemplateRequest {
		return &sandbox.TemplateRequest{Project: p, Template: a}
	}),
	"sandbox.Templates/SetPool": byApp(func(p, a string) *sandbox.SetPoolRequest {
		return &sandbox.SetPoolRequest{Project: p, Template: a}
	}),
	"sandbox.Templates/DeletePool": byApp(func(p, a string) *sandbox.PoolRequest { return &sandbox.PoolRequest{Project: p, Template: a} }),
	"sandbox.Sandboxes/Wait": bySandbox(func(x *tenant) any {
		return &sandbox.WaitRequest{Sandbox: x.sandbox.GetID(), Until: sandbox.WaitUntilEnded}
	}),
	"sandbox.Sandboxes/Exec": bySandbox(func(x *tenant) any {
		return &sandbox.ExecRequest{Sandbox: x.sandbox.GetID(), Command: []string{"true"}}
	}),
	"sandbox.Sandboxes/Attach":    bySandbox(func(x *tenant) any { return &sandbox.AttachRequest{Sandbox: x.sandbox.GetID(), Process: "1"} }),
	"sandbox.Sandboxes/Processes": bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Ports":     bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Dial":      bySandbox(func(x *tenant) any { return &sandbox.DialRequest{Sandbox: x.sandbox.GetID(), Port: 80} }),
	"sandbox.Sandboxes/Logs":      bySandbox(func(x *tenant) any { return &sandbox.LogsRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Stop":      bySandbox(func(x *tenant) any { return &sandbox.StopRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Delete":    bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Stats":     bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),

	"sandbox.Files/Stat":          fileRequest,
	"sandbox.Files/Archive":       fileRequest,
	"sandbox.Files/Extract":       fileRequest,
	"sandbox.Files/List":          bySandbox(func(x *tenant) any { return &sandbox.ListFilesRequest{Sandbox: x.sandbox.GetID(), Path: "/"} }),
	"sandbox.Files/Read":          bySandbox(func(x *tenant) any { return &sandbox.ReadFileRequest{Sandbox: x.sandbox.GetID(), Path: "/"} }),
	"sandbox.Files/Write":         bySandbox(func(x *tenant) any { return &sandbox.WriteFileRequest{Sandbox: x.sandbox.GetID(), Path: "/"} }),
	"sandbox.Files/MakeDirectory": bySandbox(func(x *tenant) any { return &sandbox.MakeDirectoryRequest{Sandbox: x.sandbox.GetID(), Path: "/"} }),
	"sandbox.Files/Remove":        bySandbox(func(x *tenant) any { return &sandbox.RemoveFileRequest{Sandbox: x.sandbox.GetID(), Path: "/"} }),
	"sandbox.Files/Move":          bySandbox(func(x *tenant) any { return &sandbox.MoveFileRequest{Sandbox: x.sandbox.GetID(), Path: "/a", To: "/b"} }),
	"sandbox.Files/Copy":          bySandbox(func(x *tenant) any { return &sandbox.CopyFileRequest{Sandbox: x.sandbox.GetID(), Path: "/a", To: "/b"} }),
	"sandbox.Files/ChangeMode":    bySandbox(func(x *tenant) any { return &sandbox.ChangeModeRequest{Sandbox: x.sandbox.GetID(), Path: "/"} }),
	"sandbox.Files/Attributes":    fileRequest,
	"sandbox.Files/SetAttribute": bySandbox(func(x *tenant) any {
		return &sandbox.SetAttributeRequest{Sandbox: x.sandbox.GetID(), Path: "/", Name: "n"}
	}),
	"sandbox.Files/Space": fileRequest,
	"sandbox.Files/MakeLink": bySandbox(func(x *tenant) any {
		return &sandbox.MakeLinkRequest{Sandbox: x.sandbox.GetID(), Path: "/a", Target: "/b"}
	}),
	"sandbox.Files/Truncate": bySandbox(func(x *tenant) any { return &sandbox.TruncateFileRequest{Sandbox: x.sandbox.GetID(), Path: "/"} }),
	"sandbox.Files/ChangeTimes": bySandbox(func(x *tenant) any {
		return &sandbox.ChangeTimesRequest{Sandbox: x.sandbox.GetID(), Path: "/", AccessedAt: time.Now(), ModifiedAt: time.Now()}
	}),
	"sandbox.Files/Watch": bySandbox(func(x *tenant) any { return &sandbox.WatchFilesRequest{Sandbox: x.sandbox.GetID(), Path: "/"} }),

	"execution.Executions/Submit": byApp(func(p, _ string) *execution.SubmitRequest { return &execution.SubmitRequest{Project: p} }),
	"execution.Executions/SubmitBatch": byApp(func(p, _ string) *execution.SubmitBatchRequest {
		return &execution.SubmitBatchRequest{Project: p, Executions: []execution.SubmitRequest{{Language: "python"}}}
	}),
	"execution.Executions/Get":  executionRequest,
	"execution.Executions/List": byApp(func(p, _ string) *execution.ListRequest { return &execution.ListRequest{Project: p, Limit: 1} }),
	"execution.Executions/Wait": executionRequest,
	"execution.Executions/Result": byApp(func(p, a string) *execution.ResultRequest {
		return &execution.ResultRequest{Project: p, Execution: a}
	}),
	"execution.Executions/Logs": byApp(func(p, a string) *execution.LogsRequest { return &execution.LogsRequest{Project: p, Execution: a} }),
	"execution.Executions/Cancel": byApp(func(p, a string) *execution.CancelRequest {
		return &execution.CancelRequest{Project: p, Execution: a}
	}),

	"history.History/List": {rpc.ProjectHandler, func(x *tenant) any {
		return &history.ListRequest{Project: x.project, Stream: history.StreamAudit, Limit: 1}
	}},

	"server.Server/Caller":         forAny,
	"server.Server/Status":         forAny,
	"server.Server/Stop":           forCluster,
	"server.Server/Doctor":         forCluster,
	"server.Server/IssueIdentity":  forCluster,
	"server.Server/RevokeIdentity": forCluster,
	"server.SSH/AddKey":            forCluster,
	"server.SSH/DeleteKey":         forCluster,
	"server.SSH/RotateHostKey":     forCluster,
	"server.SSH/IssueCertificate": bySandbox(func(x *tenant) any {
		return &server.IssueSSHCertificateRequest{Sandbox: x.sandbox.GetID(), PublicKey: "none"}
	}),
	"server.SSH/Connect":         bySandbox(func(x *tenant) any { return &server.SSHConnectRequest{Sandbox: x.sandbox.GetID()} }),
	"server.Nodes/Summary":       forAny,
	"server.Nodes/Cordon":        forCluster,
	"runner.Runners/CreateToken": forCluster,
	"runner.Runners/Delete":      forCluster,
	"server.Nodes/Uncordon":      forCluster,
	"server.Nodes/Drain":         forCluster,
	"server.Debug/Controllers":   forCluster,

	"store.Entities/Kinds": forAny,
	"store.Entities/Get": {rpc.ProjectHandler, func(x *tenant) any {
		return &store.GetRequest{Kind: app.KindApp, ID: string(x.app.ID)}
	}},
	"store.Entities/List": {rpc.ProjectHandler, func(x *tenant) any {
		return &store.ListRequest{Kind: app.KindApp, Project: string(x.projectID)}
	}},
	"store.Entities/Watch": {rpc.ProjectHandler, func(x *tenant) any {
		return &store.WatchRequest{Kind: app.KindApp, Project: string(x.projectID)}
	}},
	"store.Entities/Txn":       forCluster,
	"store.Entities/Grant":     forCluster,
	"store.Entities/KeepAlive": forCluster,
	"store.Entities/Revoke":    forCluster,
}

// otherForms are further requests that lead to a project.
var otherForms = map[string]answer{
	"sandbox.Sandboxes/Exec": byApp(func(p, a string) *sandbox.ExecRequest {
		return &sandbox.ExecRequest{Project: p, App: a, Command: []string{"true"}}
	}),
	"sandbox.Sandboxes/Fork": bySandbox(func(x *tenant) any { return &sandbox.ForkRequest{Snapshot: x.snapshot.GetID()} }),
	"sandbox.Sandboxes/Logs": byApp(func(p, a string) *sandbox.LogsRequest { return &sandbox.LogsRequest{Project: p, App: a} }),
	"store.Entities/Get": {rpc.ProjectHandler, func(x *tenant) any {
		return &store.GetRequest{Kind: core.KindProject, ID: string(x.projectID)}
	}},
}

// attempt makes a call and returns its first answer; nil for an allowed call
// that only waits.
func attempt(t *testing.T, cl *rpc.Client, m rpc.MethodInfo, req any, allowed bool) error {
	limit := time.Minute
	if allowed {
		limit = 300 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if req == nil {
		req = &rpc.None{}
	}
	if m.Stream == rpc.StreamNone {
		return cl.Call(ctx, &m, req, &rpc.None{})
	}
	st, err := cl.Open(ctx, &m, req)
	if err != nil {
		return err
	}
	defer st.Close()
	_ = st.CloseSend() // the call may have ended; RecvMsg returns the reason
	return st.RecvMsg(&map[int]any{})
}

// TestEveryMethodKeepsToProjects calls every method without an identity and
// with roles that are bound to a project, for that project and for another.
func TestEveryMethodKeepsToProjects(t *testing.T) {
	eachStore(t, testEveryMethodKeepsToProjects)
}

func testEveryMethodKeepsToProjects(t *testing.T, e *frontEnv) {
	const own, other = "own", "other"
	foreign := e.newTenant(other)
	clients := map[string]*rpc.Client{"": e.dial(nil, nil)}
	for _, role := range []string{"viewer", "agent", "deployer", rpc.RoleAdmin} {
		e.newTenant(own)
		clients[role] = e.holder(e.issue(e.root(), "holder", role+"@"+own))
	}
	methods := e.f.rpc.Methods()
	slices.SortFunc(methods, func(a, b rpc.MethodInfo) int { return cmp.Compare(a.Full, b.Full) })
	seen := map[string]bool{}
	for _, m := range methods {
		seen[m.Full] = true
		if m.Permission == rpc.Public {
			continue
		}
		a, ok := answers[m.Full]
		if !ok {
			t.Errorf("%s: say in answers what it does with callers of another project", m.Full)
			continue
		}
		if a.rule != m.Project {
			t.Errorf("%s: its interface says %q, this test %q", m.Full, m.Project, a.rule)
		}
		forms := []answer{a}
		if f, ok := otherForms[m.Full]; ok {
			forms = append(forms, f)
		}
		for role, cl := range clients {
			may := slices.Contains(reach[role], m.Permission)
			for _, a := range forms {
				if a.request == nil {
					if m.Full == "server.Server/Status" && may {
						continue // it examines the machine, which this test does not have
					}
					check(t, m, role, "", attempt(t, cl, m, nil, may && a.rule == rpc.ProjectAny), may && a.rule == rpc.ProjectAny)
					continue
				}
				mine := foreign
				if may {
					mine = e.newTenant(own)
				}
				check(t, m, role, own, attempt(t, cl, m, a.request(mine), may), may)
				check(t, m, role, other, attempt(t, cl, m, a.request(foreign), false), false)
			}
		}
	}
	for name := range answers {
		if !seen[name] {
			t.Errorf("there is no method %s", name)
		}
	}
	// A refused call has changed nothing.
	if _, err := entity.Get[sandbox.Sandbox](t.Context(), e.c.store, foreign.sandbox.GetID()); err != nil {
		t.Errorf("the sandbox of the other project: %v", err)
	}
	if _, err := entity.Get[app.App](t.Context(), e.c.store, foreign.app.GetID()); err != nil {
		t.Errorf("the app of the other project: %v", err)
	}
}

// check compares the end of a call with whether it was allowed.
func check(t *testing.T, m rpc.MethodInfo, role, project string, err error, allowed bool) {
	t.Helper()
	denied := errs.Is(err, errs.PermissionDenied) || errs.Is(err, errs.Unauthenticated)
	if allowed == denied {
		t.Errorf("%s as %q in project %q: %v, want allowed=%t", m.Full, role, project, err, allowed)
	}
	if !allowed && m.Project != rpc.ProjectHandler && rpc.OutcomeOf(err) != rpc.NotStarted {
		t.Errorf("%s as %q in project %q: outcome %s", m.Full, role, project, rpc.OutcomeOf(err))
	}
	if role == "" && !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("%s by nobody: %v", m.Full, err)
	}
}

// TestListsShowOwnProjectsOnly: also for a request without a project.
func TestListsShowOwnProjectsOnly(t *testing.T) {
	e := newFrontEnv(t)
	mine, second, foreign := e.newTenant("mine"), e.newTenant("second"), e.newTenant("foreign")
	for _, c := range []struct {
		roles []string
		want  []*tenant
	}{
		{[]string{"viewer@mine"}, []*tenant{mine}},
		{[]string{"viewer@mine", "deployer@second"}, []*tenant{mine, second}},
		{[]string{"viewer"}, []*tenant{mine, second, foreign}},
	} {
		cl := store.NewEntitiesClient(e.holder(e.issue(e.root(), "holder", c.roles...)))
		for _, kind := range []string{app.KindApp, core.KindProject} {
			var got, want []string
			resp, err := cl.List(t.Context(), &store.ListRequest{Kind: kind})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range resp.Records {
				got = append(got, string(r.ID))
			}
			for _, x := range c.want {
				want = append(want, string(map[string]schema.ID{app.KindApp: x.app.ID, core.KindProject: x.projectID}[kind]))
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%v list %s: %v, want %v", c.roles, kind, got, want)
			}
		}
		_, err := cl.List(t.Context(), &store.ListRequest{Kind: core.KindNode})
		if bound := len(c.want) < 3; errs.Is(err, errs.PermissionDenied) != bound {
			t.Errorf("%v list nodes: %v", c.roles, err)
		}
	}
}

// TestWatchShowsOwnProjectsOnly: a watch of every kind has no event of another project.
func TestWatchShowsOwnProjectsOnly(t *testing.T) {
	e := newFrontEnv(t)
	e.newTenant("mine")
	e.newTenant("foreign")
	cl := store.NewEntitiesClient(e.holder(e.issue(e.root(), "holder", "viewer@mine")))
	w, err := cl.Watch(t.Context(), &store.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	e.newTenant("foreign")
	last := e.newTenant("mine")
	for {
		b, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range b.Events {
			if ev.Record == nil {
				continue
			}
			if ev.Record.Project != last.projectID {
				t.Errorf("an event of %s %s in project %s", ev.Record.Kind, ev.Record.ID, ev.Record.Project)
			}
			if ev.Record.ID == last.sandbox.ID {
				return
			}
		}
	}
}

// TestBoundRoleNamesAProject: roles are checked when a certificate is issued.
func TestBoundRoleNamesAProject(t *testing.T) {
	e := newFrontEnv(t)
	e.newTenant("shop")
	for role, want := range map[string]errs.Class{
		"deployer@shop": "", "deployer@nowhere": errs.NotFound, "deployer@": errs.InvalidArgument, "boss@shop": errs.InvalidArgument,
	} {
		if err := e.f.checkRole(t.Context(), role); errs.ClassOf(err) != want && (want != "" || err != nil) {
			t.Errorf("%s: %v", role, err)
		}
	}
}
