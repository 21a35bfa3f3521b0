package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/history"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

// AuditRecord is a call that changed something, or was refused.
type AuditRecord struct {
	ID          string         `json:"id" doc:"Id."`
	Time        time.Time      `json:"time" doc:"Time of the record."`
	Actor       string         `json:"actor,omitempty" doc:"Who made the call." example:"key:default/ci"`
	Action      string         `json:"action" doc:"The call." example:"sandbox.Sandboxes/Run"`
	SubjectKind string         `json:"subject_kind,omitempty" doc:"Kind of what it was about."`
	Subject     string         `json:"subject,omitempty" doc:"Id of what it was about, or the name that the call gave."`
	Outcome     string         `json:"outcome" doc:"ok, started, or the class of the error."`
	RequestID   string         `json:"request_id,omitempty" doc:"Id of the call."`
	Detail      map[string]any `json:"detail,omitempty" doc:"More, such as the address of the caller."`
}

// AuditPage is a page of the audit log.
type AuditPage struct {
	Records    []AuditRecord `json:"records" doc:"Records, newest first."`
	NextCursor string        `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func registerAudit(a huma.API) {
	register(a, op(http.MethodGet, "/audit", "list-audit", "audit", "List the calls that changed something in the project, and refused ones"), listAudit)
}

type auditInput struct {
	Actor       string    `query:"actor" maxLength:"200" doc:"Only calls of this identity, such as key:default/ci."`
	Action      string    `query:"action" maxLength:"200" doc:"Only this call, such as sandbox.Sandboxes/Run."`
	SubjectKind string    `query:"subject_kind" maxLength:"63" doc:"With subject: only calls about this; the kind, such as sandbox."`
	Subject     string    `query:"subject" maxLength:"200" doc:"With subject_kind: id, or the name that the calls gave."`
	Since       time.Time `query:"since" doc:"Only records of this time or later."`
	Until       time.Time `query:"until" doc:"Only records before this time."`
	Limit       int64     `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Most records of a page."`
	Cursor      string    `query:"cursor" maxLength:"256" doc:"next_cursor of the page before."`
}

func listAudit(ctx context.Context, in *auditInput) (*body[AuditPage], error) {
	c := callerFrom(ctx)
	resp, err := history.NewHistoryClient(c.Client).List(ctx, &history.ListRequest{
		Stream: history.StreamAudit, Project: c.Project(), Actor: in.Actor, Action: in.Action, SubjectKind: in.SubjectKind, Subject: in.Subject,
		Since: opt.Of(in.Since), Until: opt.Of(in.Until), Limit: in.Limit, Cursor: in.Cursor,
	})
	if err != nil {
		return nil, err
	}
	out := AuditPage{Records: []AuditRecord{}, NextCursor: resp.Cursor}
	for i := range resp.Records {
		r := &resp.Records[i]
		a := AuditRecord{
			ID: r.ID, Time: r.Time, Actor: r.Actor, Action: r.Action, SubjectKind: r.SubjectKind, Subject: r.Subject, Outcome: r.Outcome, RequestID: r.RequestID,
		}
		if r.Detail != "" {
			if err := json.Unmarshal([]byte(r.Detail), &a.Detail); err != nil {
				return nil, errs.New(errs.Internal, "detail of audit record %s: %w", r.ID, err)
			}
		}
		out.Records = append(out.Records, a)
	}
	return &body[AuditPage]{out}, nil
}
