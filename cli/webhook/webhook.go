// Package webhook has `r webhook`: HTTP requests that tell programs what happens in
// a project.
package webhook

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("webhook", "HTTP requests that tell programs what happens in the project",
		newCreate(e), newList(e), newDescribe(e), newUpdate(e), newSwitch(e, "enable", "Deliver events to a webhook again", false),
		newSwitch(e, "disable", "Deliver no events to a webhook", true), newRotate(e), newTest(e), newDeliveries(e), newReplay(e), newDelete(e))
}

// client connects and returns the operations on webhooks.
func client(ctx context.Context, e *command.Env) (webhook.WebhooksClient, error) {
	c, err := e.Connect(ctx)
	return webhook.NewWebhooksClient(c), err
}

func newCreate(e *command.Env) *cobra.Command {
	var events []string
	cmd := &cobra.Command{
		Use:   "create NAME URL",
		Short: "Make a webhook",
		Long: `Makes a webhook of the project and prints its secret, by which the receiver checks requests. The secret is shown this once:
the server keeps it encrypted. In a pipe it is printed alone. The receiver gets what happens from now on.`,
		Example: "  r webhook create ci https://example.com/hooks\n  SECRET=$(r webhook create ends https://example.com/hooks --events 'sandbox.ended,execution.*')",
		Args:    command.Args(2, 2, "NAME URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return create(cmd.Context(), e, &webhook.CreateWebhookRequest{Project: e.Project(), Webhook: args[0], URL: args[1], Events: events})
		},
	}
	cmd.Flags().StringSliceVar(&events, "events", nil, "events that it gets: types, NOUN.* or *; default all")
	return cmd
}

func create(ctx context.Context, e *command.Env, req *webhook.CreateWebhookRequest) error {
	if err := req.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	resp, err := c.Create(ctx, req)
	if err != nil {
		return err
	}
	return printSecret(e, "made", resp)
}

// printSecret prints a new secret.
func printSecret(e *command.Env, what string, resp *webhook.WebhookSecretResponse) error {
	w, err := entity.Decode[webhook.Webhook](&resp.Webhook)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(map[string]any{"name": w.Name, "url": w.Spec.URL, "events": w.Spec.Events, "secret": resp.Secret})
	}
	e.Notef("%s %s the webhook %s (%s); its secret is not shown again\n", e.Paint(console.Green, "✓"), what, w.Name, strings.Join(w.Spec.Events, ", "))
	e.Printf("%s\n", resp.Secret)
	return nil
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*webhook.Webhook, error) {
		all, _, err := command.All[webhook.Webhook](ctx, e, entity.Query{})
		slices.SortFunc(all, func(a, b *webhook.Webhook) int { return cmp.Compare(a.Name, b.Name) })
		return all, err
	}
	return command.List(e, "List the webhooks of the project", []string{webhook.KindWebhook}, load, func(_ context.Context, all []*webhook.Webhook) error {
		if len(all) == 0 && e.Terminal {
			e.Notef("there are no webhooks: r webhook create makes one\n")
			return nil
		}
		var rows [][]string
		for _, w := range all {
			rows = append(rows, []string{w.Name, w.Spec.URL, strings.Join(w.Spec.Events, ","), state(e, w), delivered(w), schema.CellAge(w.CreatedAt, time.Now())})
		}
		e.Table([]string{"NAME", "URL", "EVENTS", "STATE", "LAST DELIVERED", "AGE"}, rows)
		return nil
	})
}

// state says whether a webhook works.
func state(e *command.Env, w *webhook.Webhook) string {
	switch st := &w.Status; {
	case w.Spec.Disabled:
		return e.Paint(console.Yellow, "disabled")
	case st.Failures > 0:
		return e.Paint(console.Red, fmt.Sprintf("%d failures: %s", st.Failures, st.LastOutcome))
	case st.LastAttempt != nil:
		return "delivers"
	}
	return "enabled"
}

func delivered(w *webhook.Webhook) string {
	if w.Status.LastDelivered == nil {
		return "never"
	}
	return schema.CellAge(*w.Status.LastDelivered, time.Now()) + " ago"
}

func newDescribe(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "describe NAME",
		Aliases:           []string{"show"},
		Short:             "Show a webhook and its health",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, webhook.WebhookKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := find(cmd.Context(), e, args[0])
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(w)
			}
			e.Printf("name            %s\nurl             %s\nevents          %s\nstate           %s\nlast outcome    %s\nlast delivered  %s\n",
				w.Name, w.Spec.URL, strings.Join(w.Spec.Events, ", "), state(e, w), cmp.Or(w.Status.LastOutcome, "none"), delivered(w))
			if until := w.Spec.PreviousUntil; until != nil && time.Now().Before(*until) {
				e.Printf("old secret      signs too until %s\n", until.Local().Format(time.DateTime))
			}
			return nil
		},
	}
}

// find returns the named webhook of the project.
func find(ctx context.Context, e *command.Env, name string) (*webhook.Webhook, error) {
	return command.Find[webhook.Webhook](ctx, e, name)
}

func newUpdate(e *command.Env) *cobra.Command {
	req := &webhook.UpdateWebhookRequest{}
	cmd := &cobra.Command{
		Use:               "update NAME",
		Short:             "Change the URL or the events of a webhook",
		Example:           "  r webhook update ci --url https://example.com/new\n  r webhook update ci --events 'deployment.*'",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, webhook.WebhookKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.URL == "" && len(req.Events) == 0 {
				return exit.Usagef("say what changes: --url or --events")
			}
			req.Webhook = args[0]
			return update(cmd.Context(), e, req, "changed")
		},
	}
	cmd.Flags().StringVar(&req.URL, "url", "", "URL of the receiver; default as it is")
	cmd.Flags().StringSliceVar(&req.Events, "events", nil, "events that it gets: types, NOUN.* or *; default as they are")
	return cmd
}

func newSwitch(e *command.Env, name, short string, disabled bool) *cobra.Command {
	return &cobra.Command{
		Use:               name + " NAME",
		Short:             short,
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, webhook.WebhookKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return update(cmd.Context(), e, &webhook.UpdateWebhookRequest{Webhook: args[0], Disabled: &disabled}, name+"d")
		},
	}
}

func update(ctx context.Context, e *command.Env, req *webhook.UpdateWebhookRequest, what string) error {
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	req.Project = e.Project()
	resp, err := c.Update(ctx, req)
	if err != nil {
		return err
	}
	w, err := entity.Decode[webhook.Webhook](&resp.Webhook)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(w)
	}
	e.Printf("%s %s the webhook %s\n", e.Paint(console.Green, "✓"), what, w.Name)
	return nil
}

func newRotate(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "rotate-secret NAME",
		Short:             "Give a webhook a new secret",
		Long:              "Gives a webhook a new secret and prints it. For a day requests are signed with the old one too.",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, webhook.WebhookKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.RotateSecret(cmd.Context(), &webhook.WebhookRequest{Project: e.Project(), Webhook: args[0]})
			if err != nil {
				return err
			}
			return printSecret(e, "changed", resp)
		},
	}
}

func newDelete(e *command.Env) *cobra.Command {
	return command.Delete(e, webhook.WebhookKind, "webhook", "Delete a webhook", "Deletes a webhook, with its deliveries.",
		func(ctx context.Context, c *rpc.Client, name string) error {
			return webhook.NewWebhooksClient(c).Delete(ctx, &webhook.WebhookRequest{Project: e.Project(), Webhook: name})
		})
}
