// Package app has `r app`: deploy, inspect and control apps.
package app

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/rollout"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("app", "Deploy and control apps",
		newInit(e), newCreate(e), newSchema(e), newPlan(e), NewDeploy(e), newList(e), newShow(e), NewStatus(e), newHistory(e), newDiff(e), newSBOM(e), newRollback(e), newPromote(e), NewLogs(e), newMetrics(e), NewEnv(e),
		newExec(e), NewConsole(e), NewOpen(e), newRun(e), NewScale(e), newMaintenance(e), newRestart(e), newCancel(e), newDelete(e))
}

// client returns the service of apps.
func client(ctx context.Context, e *command.Env) (app.AppsClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return app.NewAppsClient(c), nil
}

// find returns the app of a name.
func find(ctx context.Context, e *command.Env, name string) (*app.App, error) {
	return command.Find[app.App](ctx, e, name)
}

// ofApp selects the entities of an app, by an indexed attribute.
func ofApp(attr string, a *app.App) entity.Query {
	return entity.Query{Index: []entity.IndexMatch{{Attr: attr, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(a.ID))}}}
}

// follow shows the deployment of a response, if there is one.
func follow(ctx context.Context, e *command.Env, name string, resp *app.DeploymentResponse, err error, detach bool) error {
	if err != nil {
		return err
	}
	if resp.Deployment == nil {
		return nil
	}
	d, err := entity.Decode[app.Deployment](resp.Deployment)
	if err != nil {
		return err
	}
	v := rollout.New(e.Console, now)
	return rollout.Finish(ctx, e, v, name, d, detach)
}
