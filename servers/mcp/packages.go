package mcpserver

import (
	"context"
	"strings"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/pkg/errs"
)

type installInput struct {
	Sandbox        string   `json:"sandbox" jsonschema:"id or name of the sandbox, whose template must have the language"`
	Language       string   `json:"language" jsonschema:"language whose package manager installs them: pip for python, npm for javascript and typescript, go get for go, cargo for rust, Maven for java (group:artifact:version), Debian's packages for cpp and shell"`
	Packages       []string `json:"packages" jsonschema:"names of packages, as the package manager has them"`
	TimeoutSeconds int64    `json:"timeout_seconds,omitempty" jsonschema:"the installation is ended after so many seconds; default 300"`
}

func (s *session) installPackages(ctx context.Context, c *call, in *installInput) (*runOutput, error) {
	lang, err := languages.Lookup(in.Language)
	if err != nil {
		return nil, err
	}
	if len(lang.Install) == 0 {
		return nil, errs.New(errs.InvalidArgument, "packages of %s cannot be installed", lang.Title).WithHint("%s", lang.Note)
	}
	if len(in.Packages) == 0 {
		return nil, errs.New(errs.InvalidArgument, "packages names none")
	}
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if mode, _ := networkOf(&sb.Spec.Template); mode == networkNone {
		hint := "set_network gives it one: network all, or allow_hosts with the hosts of the package registry"
		if s.NoNetwork {
			hint = "this server gives sandboxes no network: use what its template has"
		}
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s reaches no network, from which packages come", sb.ID).WithHint("%s", hint)
	}
	c.say("installing %s", strings.Join(in.Packages, " "))
	dir := sb.Spec.Template.Workdir
	return s.exec(ctx, c, sb.GetID(), &processInput{TimeoutSeconds: in.TimeoutSeconds}, sandbox.ExecRequest{
		Command: append(lang.Expand(lang.Install, dir), in.Packages...), Workdir: dir, Env: lang.Env,
	})
}
