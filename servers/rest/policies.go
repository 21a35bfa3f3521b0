package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/core"
)

// Policy is what sandboxes, previews and keys of the project must be like.
type Policy struct {
	Templates        []string `json:"templates,omitempty" doc:"Names of the templates of which sandboxes are made; absent: any, and images."`
	MaxEgress        string   `json:"max_egress,omitempty" enum:"none,listed,all" doc:"The widest network of a session; absent: any."`
	Networks         []string `json:"networks,omitempty" doc:"With listed: networks, addresses and domains that a session may list."`
	MaxTTLSeconds    *int64   `json:"max_ttl_seconds,omitempty" doc:"Longest time to live of a session; absent: any."`
	Confine          bool     `json:"confine" doc:"Programs run in the second layer inside the session only."`
	MaxCPUMillis     *int64   `json:"max_cpu_millis,omitempty" doc:"Most CPU of a session, in thousandths; absent: any."`
	MaxMemoryBytes   *int64   `json:"max_memory_bytes,omitempty" doc:"Most memory of a session; absent: any."`
	MaxDiskBytes     *int64   `json:"max_disk_bytes,omitempty" doc:"Largest root disk of a session; absent: any."`
	MaxPIDs          *int64   `json:"max_pids,omitempty" doc:"Most processes of a session; absent: any."`
	PrivatePreviews  bool     `json:"private_previews" doc:"Ports are reached with a token only."`
	MaxKeyTTLSeconds *int64   `json:"max_key_ttl_seconds,omitempty" doc:"Longest validity of a new key, which must expire; absent: any."`
}

// PolicyFinding is something that violates a rule, or deserves a look.
type PolicyFinding struct {
	Kind    string `json:"kind" doc:"Kind of what is concerned." example:"sandbox"`
	ID      string `json:"id" doc:"Its id."`
	Name    string `json:"name,omitempty" doc:"Its name."`
	Rule    string `json:"rule,omitempty" doc:"The rule that it violates; absent: it violates none, but deserves a look." example:"max_ttl"`
	Message string `json:"message" doc:"What is wrong."`
}

// PolicyReport lists what violates the policy of the project.
type PolicyReport struct {
	Violations int64           `json:"violations" doc:"Number of findings with a rule."`
	Findings   []PolicyFinding `json:"findings" doc:"Findings, violations first."`
}

func registerPolicies(a huma.API) {
	const tag = "policy"
	register(a, op(http.MethodGet, "/policy", "get-policy", tag, "Get what sandboxes, previews and keys of the project must be like"), getPolicy)
	register(a, op(http.MethodGet, "/policy/report", "report-policy", tag, "Report what violates the policy of the project, and what else deserves a look"), reportPolicy)
}

func policies(ctx context.Context) core.PoliciesClient {
	return core.NewPoliciesClient(callerFrom(ctx).Client)
}

// inSeconds returns a duration for an answer; nil for an absent one.
func inSeconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	n := int64(*d / time.Second)
	return &n
}

func getPolicy(ctx context.Context, _ *struct{}) (*body[Policy], error) {
	resp, err := policies(ctx).Show(ctx, &core.PolicyRequest{Project: callerFrom(ctx).Project()})
	if err != nil {
		return nil, err
	}
	p := &resp.Policy
	return &body[Policy]{Policy{
		Templates: p.Templates, MaxEgress: string(p.MaxEgress), Networks: p.Networks, MaxTTLSeconds: inSeconds(p.MaxTTL), Confine: p.Confine,
		MaxCPUMillis: p.MaxCPUMillis, MaxMemoryBytes: p.MaxMemoryBytes, MaxDiskBytes: p.MaxDiskBytes, MaxPIDs: p.MaxPIDs,
		PrivatePreviews: p.PrivatePreviews, MaxKeyTTLSeconds: inSeconds(p.MaxKeyTTL),
	}}, nil
}

func reportPolicy(ctx context.Context, _ *struct{}) (*body[PolicyReport], error) {
	resp, err := policies(ctx).Report(ctx, &core.PolicyReportRequest{Project: callerFrom(ctx).Project()})
	if err != nil {
		return nil, err
	}
	out := PolicyReport{Violations: resp.Violations, Findings: []PolicyFinding{}}
	for _, f := range resp.Findings {
		out.Findings = append(out.Findings, PolicyFinding{Kind: f.Kind, ID: f.ID, Name: f.Name, Rule: string(f.Rule), Message: f.Message})
	}
	return &body[PolicyReport]{out}, nil
}
