package mcpserver

import (
	"cmp"
	"context"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// prompt is one entry of the table of prompts.
type prompt struct {
	sdk.Prompt
	needs []string // tools that it names
	text  func(args map[string]string) string
}

func prompts() []prompt {
	return []prompt{
		{
			Prompt: sdk.Prompt{
				Name: "solve_with_code", Title: "Solve a task with code", Description: "Writes and runs a program until it solves a task",
				Arguments: []*sdk.PromptArgument{
					{Name: "task", Description: "what to do", Required: true},
					{Name: "language", Description: "language of the program; default: python"},
					{Name: "sandbox", Description: "id or name of the sandbox in which it runs; default: a new one"},
				},
			},
			needs: []string{"run_code", "create_sandbox"},
			text: func(args map[string]string) string {
				language := cmp.Or(args["language"], "python")
				where := "If it needs several steps, files or packages, make a sandbox with create_sandbox first and use it in each call."
				if args["sandbox"] != "" {
					where = fmt.Sprintf("Use sandbox %s in each call.", args["sandbox"])
				}
				return fmt.Sprintf("Solve this task with a program in %s:\n\n%s\n\nRun it with run_code and check its output. %s "+
					"Correct the program until the result is right, then answer with the result and the program.", language, args["task"], where)
			},
		},
		{
			Prompt: sdk.Prompt{
				Name: "analyze_data", Title: "Analyze data", Description: "Answers a question about data with Python, tables and plots",
				Arguments: []*sdk.PromptArgument{
					{Name: "question", Description: "the question", Required: true},
					{Name: "data", Description: "the data, or the path of its file", Required: true},
					{Name: "template", Description: "template of the sandbox; default: code-interpreter-v1"},
				},
			},
			needs: []string{"run_cell", "create_sandbox"},
			text: func(args map[string]string) string {
				template := cmp.Or(args["template"], "code-interpreter-v1")
				return fmt.Sprintf("Answer this question about data:\n\n%s\n\nThe data: %s\n\nMake a sandbox of template %s with create_sandbox and "+
					"put the data into it. Work with run_cell, which keeps variables between calls and shows plots. Look at the data before you use it. "+
					"Answer with what you found and how.", args["question"], args["data"], template)
			},
		},
	}
}

// addPrompts gives the server the prompts whose tools the session has.
func (s *session) addPrompts() {
	for _, p := range prompts() {
		if !s.has(p.needs...) {
			continue
		}
		s.server.AddPrompt(&p.Prompt, func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			return &sdk.GetPromptResult{Description: p.Description, Messages: []*sdk.PromptMessage{
				{Role: "user", Content: &sdk.TextContent{Text: p.text(req.Params.Arguments)}},
			}}, nil
		})
	}
}
