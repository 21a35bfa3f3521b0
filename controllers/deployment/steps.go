package deployment

import (
	"context"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
)

// steps of every deployment, in order. A release command has its step before start.
var steps = []string{"build", "start", "shift", "bake", "drain"}

// step starts the named step, ending those before it.
func (r *rollout) step(name, message string) {
	now := r.now()
	for i := range r.dep.Status.Steps {
		s := &r.dep.Status.Steps[i]
		if s.Name == name {
			s.State, s.Message, s.StartedAt, s.EndedAt = app.StepStateRunning, message, &now, nil
			// After a step back, the later steps are pending again.
			for j := i + 1; j < len(r.dep.Status.Steps); j++ {
				r.dep.Status.Steps[j] = app.Step{Name: r.dep.Status.Steps[j].Name, State: app.StepStatePending}
			}
			return
		}
		switch s.State {
		case app.StepStateRunning:
			s.State, s.EndedAt = app.StepStateDone, &now
		case app.StepStatePending:
			s.State = app.StepStateSkipped
		}
	}
}

// endSteps ends the running step and skips the later ones.
func (r *rollout) endSteps(state app.StepState, message string) {
	now := r.now()
	for i := range r.dep.Status.Steps {
		s := &r.dep.Status.Steps[i]
		switch s.State {
		case app.StepStateRunning:
			s.State, s.EndedAt = state, &now
			if message != "" {
				s.Message = message
			}
		case app.StepStatePending:
			s.State = app.StepStateSkipped
		}
	}
}

func (r *rollout) stepStart(name string) time.Time {
	for _, s := range r.dep.Status.Steps {
		if s.Name == name && s.StartedAt != nil {
			return *s.StartedAt
		}
	}
	return time.Time{}
}

// waited returns how long a server has worked on the deployment since t: until now, and not before this one began.
func (r *rollout) waited(now, t time.Time) time.Duration {
	if t.Before(r.Began) {
		t = r.Began
	}
	return now.Sub(t)
}

// report stores the progress of the running step, if it changed.
func (r *rollout) report(ctx context.Context, message string) error {
	for i := range r.dep.Status.Steps {
		if s := &r.dep.Status.Steps[i]; s.State == app.StepStateRunning && s.Message != message {
			s.Message = message
			return entity.UpdateStatus(ctx, r.Store, r.dep)
		}
	}
	return nil
}
