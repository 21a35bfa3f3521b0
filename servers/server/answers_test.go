package server

import (
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
	"miren.dev/runtime/pkg/rpc"
)

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
	"app.Apps/DeletePreview": byApp(func(p, a string) *app.AppPreviewRequest {
		return &app.AppPreviewRequest{Project: p, App: a, Preview: "pr-12"}
	}),
	"app.Apps/Promote": byApp(func(p, a string) *app.PromoteRequest { return &app.PromoteRequest{Project: p, App: a} }),
	"app.Apps/Restart": byApp(func(p, a string) *app.RestartRequest { return &app.RestartRequest{Project: p, App: a} }),
	"app.Apps/Cancel":  appRequest,

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
	"app.Apps/Software":  {rpc.ProjectRequest, func(x *tenant) any { return &app.SoftwareRequest{AppVersion: x.version.GetID()} }},
	"app.Deploys/Follow": {rpc.ProjectRequest, func(x *tenant) any { return &app.FollowRequest{Deployment: x.deploy.GetID()} }},
	"app.Deploys/Push":   appRequest,
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
	"disk.Disks/Salvage": byApp(func(p, a string) *disk.SalvageDiskRequest {
		return &disk.SalvageDiskRequest{Project: p, Source: a, Disk: "rescued"}
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
	"sandbox.Templates/Software": byApp(func(p, a string) *sandbox.TemplateRequest {
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
	"sandbox.Sandboxes/Attach":      bySandbox(func(x *tenant) any { return &sandbox.AttachRequest{Sandbox: x.sandbox.GetID(), Process: "1"} }),
	"sandbox.Sandboxes/Processes":   bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Ports":       bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Dial":        bySandbox(func(x *tenant) any { return &sandbox.DialRequest{Sandbox: x.sandbox.GetID(), Port: 80} }),
	"sandbox.Sandboxes/DialService": bySandbox(func(x *tenant) any { return &sandbox.DialRequest{Sandbox: x.sandbox.GetID(), Port: 80} }),
	"sandbox.Sandboxes/Logs":        bySandbox(func(x *tenant) any { return &sandbox.LogsRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Stop":        bySandbox(func(x *tenant) any { return &sandbox.StopRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Delete":      bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),
	"sandbox.Sandboxes/Stats":       bySandbox(func(x *tenant) any { return &sandbox.SandboxRequest{Sandbox: x.sandbox.GetID()} }),

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
	"server.SSH/IssuePushCertificate": forAny,
	"core.Keys/Exchange":              forAny,
	"server.SSH/Connect":              bySandbox(func(x *tenant) any { return &server.SSHConnectRequest{Sandbox: x.sandbox.GetID()} }),
	"server.Nodes/Summary":            forAny,
	"server.Nodes/List":               forCluster,
	"server.Nodes/Cordon":             forCluster,
	"runner.Runners/CreateToken":      forCluster,
	"runner.Runners/Delete":           forCluster,
	"runner.Runners/Allow":            forCluster,
	"runner.Runners/Deny":             forCluster,
	"server.Nodes/Uncordon":           forCluster,
	"server.Nodes/Drain":              forCluster,
	"server.Debug/Controllers":        forCluster,

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
