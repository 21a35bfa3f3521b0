// Package devmock has `r dev mock`. It links the services of the server, so only
// the program runtime has it.
package devmock

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/process"
	driver "miren.dev/runtime/components/mock"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/mock"
)

type options struct {
	*command.Env
	address     string
	answers     string
	seed        uint64
	rate, burst int64
	level       string
}

var levels = []string{"debug", "info", "warn", "error"}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	defaults := config.Default().API
	cmd := &cobra.Command{
		Use: "mock",
		Long: `Runs a mock server in the foreground: the HTTP API (REST, /workspace/se, E2B) for programs under development, with
its validation, problems, keys, idempotency and rate limits. It executes nothing: sandboxes are records, and what
commands and code print is stated in a file (--answers), else a fixed line. It needs no privileges and no other
program, listens on --address only, and keeps nothing after its end.

Standard output is a script that sets the address and a key of the project "default".`,
		Example: "  r dev mock > mock.env &\n  r dev mock --seed 1 --answers answers.yaml",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.address, "address", "127.0.0.1:7070", "host:port to listen on; with port 0 the system chooses one")
	f.StringVar(&o.answers, "answers", "", "YAML file of what commands and code print")
	f.Uint64Var(&o.seed, "seed", 0, "make ids and the key follow from this number; 0: they are random")
	f.Int64Var(&o.rate, "rate", defaults.Rate, "requests per second that a key may make; 0: no limit")
	f.Int64Var(&o.burst, "burst", defaults.Burst, "requests that it may make at once after a pause")
	f.StringVar(&o.level, "log-level", "warn", "what is logged to standard error: debug, info, warn or error")
	return cmd
}

// started is what the command prints with --json.
type started struct {
	Mock    bool   `json:"mock"`
	Message string `json:"message"`
	URL     string `json:"url"`
	Key     string `json:"key"`
}

func (o *options) run(ctx context.Context) error {
	if o.rate < 0 || o.burst < 1 {
		return errs.New(errs.InvalidArgument, "--rate is not negative, and --burst at least 1")
	}
	if !slices.Contains(levels, o.level) {
		return errs.New(errs.InvalidArgument, "--log-level: there is no level %q", o.level).WithHint("levels are %s", strings.Join(levels, ", "))
	}
	answers := &driver.Answers{}
	if o.answers != "" {
		text, err := os.ReadFile(o.answers)
		if err != nil {
			return errs.New(errs.InvalidArgument, "--answers: %w", err)
		}
		if answers, err = driver.ParseAnswers(text); err != nil {
			return errs.Wrap(err, "%s", o.answers)
		}
	}
	s, err := mock.New(ctx, mock.Config{
		Address: o.address, Answers: answers, Rate: o.rate, Burst: o.burst, Seed: o.seed, Logger: process.NewLogger(o.level, "text", o.Err),
	})
	if err != nil {
		return err
	}
	return s.Run(ctx, func() error { return o.announce(s) })
}

// announce says where the server is.
func (o *options) announce(s *mock.Server) error {
	if o.JSON {
		return o.PrintJSON(started{Mock: true, Message: mock.Message, URL: s.URL(), Key: s.Key()})
	}
	_, err := fmt.Fprintf(o.Out, "# %s\nexport MIREN_API_URL=%s MIREN_API_KEY=%s\nexport E2B_API_URL=%[2]s E2B_SANDBOX_URL=%[2]s E2B_API_KEY=%[3]s\n",
		mock.Message, s.URL(), s.Key())
	if err != nil {
		return errs.New(errs.Unavailable, "print the address: %w", err)
	}
	o.Notef("mock server on %s; Ctrl-C ends it\n", s.URL())
	return nil
}
