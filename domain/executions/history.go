package executions

import (
	"context"
	"encoding/json"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// action is what records of executions say that was done.
const action = "end"

// Record adds an execution that has ended to the history, unless it is there:
// a server that was killed may have added it. project is the name of its
// project. Secrets are left out.
func Record(ctx context.Context, h entity.History, project string, e *execution.Execution) error {
	_, err := Ended(ctx, h, e.GetID())
	if !errs.Is(err, errs.NotFound) {
		return err
	}
	detail, err := detailOf(e)
	if err != nil {
		return err
	}
	return h.Append(ctx, entity.HistoryRecord{
		Stream: entity.StreamExecution, Project: project, Actor: e.Spec.Actor, SubjectKind: execution.KindExecution, SubjectID: string(e.ID),
		Action: action, Outcome: string(e.Status.Outcome), Detail: detail,
	})
}

// detailOf returns an execution as JSON, without secrets and within the bound
// of a record: labels, then the attempts but the last, are left out of one that
// is larger.
func detailOf(e *execution.Execution) (json.RawMessage, error) {
	e = schema.Copy(e)
	e.Spec.Secrets = nil
	for step := 0; ; step++ {
		b, err := json.Marshal(e)
		if err != nil {
			return nil, errs.New(errs.Internal, "encode execution %s: %w", e.ID, err)
		}
		if len(b) <= entity.MaxHistoryDetail {
			return b, nil
		}
		switch step {
		case 0:
			e.Labels = nil
		case 1:
			e.Status.Attempts = e.Status.Attempts[max(0, len(e.Status.Attempts)-1):]
		default:
			return nil, errs.New(errs.Internal, "execution %s has %d bytes, too many for the history", e.ID, len(b))
		}
	}
}

// Ended returns an execution from the history. NotFound if it is not there.
func Ended(ctx context.Context, h entity.History, eid id.Execution) (*execution.Execution, error) {
	page, err := h.Records(ctx, entity.HistoryQuery{Stream: entity.StreamExecution, SubjectKind: execution.KindExecution, SubjectID: string(eid), Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(page.Records) == 0 {
		return nil, errs.New(errs.NotFound, "there is no execution %s in the history", eid)
	}
	return fromRecord(&page.Records[0])
}

func fromRecord(r *entity.HistoryRecord) (*execution.Execution, error) {
	e := execution.NewExecution()
	if err := json.Unmarshal(r.Detail, e); err != nil {
		return nil, errs.New(errs.Corrupt, "the history's record of execution %s: %w", r.SubjectID, err)
	}
	return e, nil
}
