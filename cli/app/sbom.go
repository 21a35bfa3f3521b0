package app

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/software"
	"miren.dev/runtime/pkg/errs"
)

type sbomOptions struct{ appOptions }

func newSBOM(e *command.Env) *cobra.Command {
	o := &sbomOptions{appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:   "sbom [VERSION]",
		Short: "List the software in the image of an app",
		Long: `Lists the software in the image of a version of an app, which is by default the one that serves: packages of the
distribution and of languages, and the modules of Go programs. --json prints the list as CycloneDX, which scanners for
known vulnerabilities read.`,
		Example: "  r app sbom --app shop\n  r app sbom v3 --app shop --json >shop-v3.cdx.json",
		Args:    command.Args(0, 1, "VERSION"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

func (o *sbomOptions) run(ctx context.Context, args []string) error {
	name, err := command.AppArg(nil, o.app)
	if err != nil {
		return err
	}
	a, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	version := a.Status.Active()
	if len(args) > 0 {
		versions, _, err := command.All[app.AppVersion](ctx, o.Env, ofApp(app.AppVersionAttrApp, a))
		if err != nil {
			return err
		}
		i, err := indexOf(name, versions, args[0])
		if err != nil {
			return err
		}
		version = versions[i].GetID()
	}
	if version == "" {
		return errs.New(errs.FailedPrecondition, "app %s has no version that serves", name).WithHint("deploy it, or name one of `r app history %s`", name)
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	st, err := app.NewAppsClient(c).Software(ctx, &app.SoftwareRequest{AppVersion: version})
	if err != nil {
		return err
	}
	defer st.Close()
	return software.Print(o.Env, st.Reader())
}
