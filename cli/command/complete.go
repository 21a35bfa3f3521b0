package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/pkg/schema"
)

// completeTimeout bounds the calls that completion makes.
const completeTimeout = 2 * time.Second

// CompleteNames returns the names of entities, and the ids of those without a
// name; none if the server does not answer in time.
func CompleteNames(ctx context.Context, e *Env, k *schema.Kind) []cobra.Completion {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	records, _, err := e.ListRecords(ctx, k, false, nil)
	if err != nil {
		return nil
	}
	var names []cobra.Completion
	for i := range records {
		if records[i].Name != "" {
			names = append(names, records[i].Name)
		} else {
			names = append(names, string(records[i].ID))
		}
	}
	return names
}

// CompleteFirst completes the first argument with names of a kind.
func CompleteFirst(e *Env, k *schema.Kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return CompleteNames(cmd.Context(), e, k), cobra.ShellCompDirectiveNoFileComp
	}
}
