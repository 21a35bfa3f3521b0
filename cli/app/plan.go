package app

import (
	"strings"
	"time"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/pkg/stack"
)

func (o *deployOptions) showPlan(name string, tree *source.Tree, plan *stack.Plan) error {
	if o.JSON {
		return o.PrintJSON(map[string]any{
			"app": name, "stack": plan.Stack, "reasons": plan.Reasons, "warnings": plan.Warnings, "release": plan.Release, "dockerfile": plan.Dockerfile, "generated": plan.Generated,
			"bases": plan.Bases, "services": planServices(plan.Services), "env": plan.Env,
			"files": len(tree.Manifest.Files), "bytes": tree.Manifest.Bytes(), "ignored": tree.Ignored, "skipped": tree.Skipped,
		})
	}
	o.Printf("%s\n", planText(o.Env, name, plan))
	o.Printf("%d files, %d ignored\n", len(tree.Manifest.Files), tree.Ignored)
	for _, s := range tree.Skipped {
		o.Printf("skipped %s\n", s)
	}
	if plan.Generated {
		o.Printf("\nDockerfile:\n  %s\n", strings.ReplaceAll(strings.TrimSpace(plan.Dockerfile), "\n", "\n  "))
	}
	return nil
}

func planText(e *command.Env, name string, plan *stack.Plan) string {
	lines := []string{e.Paint(console.Bold, name) + ": " + plan.Stack}
	for _, r := range plan.Reasons {
		lines = append(lines, "  "+e.Paint(console.Dim, r))
	}
	for _, w := range plan.Warnings {
		lines = append(lines, "  "+e.Paint(console.Yellow, "warning:")+" "+w)
	}
	return strings.Join(lines, "\n")
}

// planService is a service of a plan as JSON, with the names that entities use.
// A field without a value shows its default.
type planService struct {
	Name           string            `json:"name"`
	Command        []string          `json:"command,omitempty"`
	Port           *int64            `json:"port,omitempty"`
	Replicas       *int64            `json:"replicas,omitempty"`
	HealthPath     string            `json:"health_path,omitempty"`
	HealthDeadline string            `json:"health_deadline,omitempty"`
	CPUMillis      *int64            `json:"cpu_millis,omitempty"`
	MemoryBytes    *int64            `json:"memory_bytes,omitempty"`
	PIDs           *int64            `json:"pids,omitempty"`
	StopTimeout    string            `json:"stop_timeout,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Volumes        []planVolume      `json:"volumes,omitempty"`
}

type planVolume struct {
	Disk      string `json:"disk"`
	Path      string `json:"path"`
	SizeBytes *int64 `json:"size_bytes,omitempty"`
	ReadOnly  bool   `json:"read_only"`
}

func planServices(services []appconfig.Service) []planService {
	list := []planService{}
	for _, s := range services {
		var volumes []planVolume
		for _, v := range s.Volumes {
			volumes = append(volumes, planVolume(v))
		}
		list = append(list, planService{
			Name: s.Name, Command: s.Command, Port: s.Port, Replicas: s.Replicas, HealthPath: s.HealthPath, HealthDeadline: text(s.HealthDeadline),
			CPUMillis: s.CPUMillis, MemoryBytes: s.MemoryBytes, PIDs: s.PIDs, StopTimeout: text(s.StopTimeout), Env: s.Env, Volumes: volumes,
		})
	}
	return list
}

func text(d *time.Duration) string {
	if d == nil {
		return ""
	}
	return d.String()
}
