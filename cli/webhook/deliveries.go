package webhook

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

func newTest(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "test NAME",
		Short:             "Deliver an event of the type webhook.test",
		Long:              "Delivers an event of the type webhook.test to a webhook, whatever its events are, and prints the id of the delivery.",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, webhook.WebhookKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Test(cmd.Context(), &webhook.WebhookRequest{Project: e.Project(), Webhook: args[0]})
			return printDeliveries(e, "began", resp, err)
		},
	}
}

func newReplay(e *command.Env) *cobra.Command {
	var dead bool
	cmd := &cobra.Command{
		Use:   "replay NAME [DELIVERY...]",
		Short: "Send deliveries to the receiver again",
		Long: `Sends deliveries that have ended to the receiver again: the named ones, or with --dead all that the server gave up. Each
request has the same body and webhook-id as before, by which a receiver can tell that it has handled the event already.`,
		Example:           "  r webhook replay ci whd-4k2j7q8n1m5p3r9t\n  r webhook replay ci --dead",
		Args:              command.Args(1, 1000, "NAME [DELIVERY...]"),
		ValidArgsFunction: command.CompleteFirst(e, webhook.WebhookKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dead == (len(args) > 1) {
				return exit.Usagef("name deliveries (r webhook deliveries %s), or all that were given up by --dead", args[0])
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			all := &webhook.DeliveriesResponse{}
			for _, d := range append(args[1:], "")[:max(1, len(args)-1)] {
				resp, err := c.Replay(cmd.Context(), &webhook.ReplayRequest{Project: e.Project(), Webhook: args[0], Delivery: d})
				if err != nil {
					return err
				}
				all.Deliveries = append(all.Deliveries, resp.Deliveries...)
			}
			return printDeliveries(e, "replays", all, nil)
		},
	}
	cmd.Flags().BoolVar(&dead, "dead", false, "all deliveries that were given up")
	return cmd
}

func printDeliveries(e *command.Env, what string, resp *webhook.DeliveriesResponse, err error) error {
	if err != nil {
		return err
	}
	all := []*webhook.WebhookDelivery{}
	for i := range resp.Deliveries {
		d, err := entity.Decode[webhook.WebhookDelivery](&resp.Deliveries[i])
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	if e.JSON {
		return e.PrintJSON(all)
	}
	for _, d := range all {
		e.Printf("%s %s %s (%s)\n", e.Paint(console.Green, "✓"), what, d.ID, d.Spec.Type)
	}
	if len(all) == 0 {
		e.Notef("no delivery was given up\n")
	}
	return nil
}

func newDeliveries(e *command.Env) *cobra.Command {
	var phase string
	var limit int
	var watch bool
	cmd := &cobra.Command{
		Use:               "deliveries NAME",
		Short:             "List the deliveries of a webhook, newest first",
		Long:              "Lists the deliveries of a webhook, newest first: those that wait, and of those that have ended the last 1000 of the last week. --json has their bodies.",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, webhook.WebhookKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if p := webhook.DeliveryPhase(phase); phase != "" && !p.Valid() {
				return exit.Usagef("--phase is pending, delivered or dead")
			}
			return command.Show(cmd.Context(), e, watch, []string{webhook.KindWebhookDelivery}, func(ctx context.Context) ([]*webhook.WebhookDelivery, error) {
				return deliveries(ctx, e, args[0], webhook.DeliveryPhase(phase), limit)
			}, func(_ context.Context, all []*webhook.WebhookDelivery) error {
				draw(e, all)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&phase, "phase", "", "phase: pending, delivered or dead; default all")
	cmd.Flags().IntVar(&limit, "limit", 50, "most deliveries")
	command.WatchFlag(cmd, &watch)
	return cmd
}

// deliveries returns the newest deliveries of a webhook.
func deliveries(ctx context.Context, e *command.Env, name string, phase webhook.DeliveryPhase, limit int) ([]*webhook.WebhookDelivery, error) {
	w, err := find(ctx, e, name)
	if err != nil {
		return nil, err
	}
	all, _, err := command.All[webhook.WebhookDelivery](ctx, e, entity.Where(webhook.WebhookDeliveryAttrWebhook, w.GetID()))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(d *webhook.WebhookDelivery) bool { return phase != "" && d.Status.Phase != phase })
	slices.SortFunc(all, func(a, b *webhook.WebhookDelivery) int {
		return cmp.Or(b.Spec.OccurredAt.Compare(a.Spec.OccurredAt), cmp.Compare(a.ID, b.ID))
	})
	if len(all) > limit {
		all = all[:limit]
	}
	return append([]*webhook.WebhookDelivery{}, all...), nil
}

func draw(e *command.Env, all []*webhook.WebhookDelivery) {
	now := time.Now()
	var rows [][]string
	for _, d := range all {
		st := &d.Status
		status, note := "-", st.Message
		if st.HTTPStatus != nil {
			status = fmt.Sprint(*st.HTTPStatus)
		}
		if next := st.NextAttempt; st.Phase == webhook.DeliveryPhasePending && st.Attempts > 0 && next != nil && next.After(now) {
			note += fmt.Sprintf(" (again in %s)", next.Sub(now).Round(time.Second))
		}
		phase := string(st.Phase)
		if st.Phase == webhook.DeliveryPhaseDead {
			phase = e.Paint(console.Red, phase)
		}
		rows = append(rows, []string{string(d.ID), d.Spec.Type, phase, fmt.Sprint(st.Attempts), status, schema.CellAge(d.Spec.OccurredAt, now), note})
	}
	e.Table([]string{"ID", "EVENT", "PHASE", "ATTEMPTS", "STATUS", "AGE", "NOTE"}, rows)
}
