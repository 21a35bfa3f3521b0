package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/rollout"
	"miren.dev/runtime/cli/upload"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/pkg/stack"
)

var now = time.Now

type deployOptions struct {
	*command.Env
	dir     string
	app     string
	message string
	noCache bool
	stack   string
	detach  bool
	plan    bool
	canary  int64
	preview app.PreviewRequest // no name: none
	image   string             // deployed in place of a source
	branch  string             // of a repository that was cloned
	// Of a workspace whose lock file is above it: the folder that is uploaded, and dir below it. Else empty.
	root, folder string
}

// stackFlag describes --stack.
const stackFlag = "stack to build it with: dockerfile, go, python, ruby, php, java, rust, deno, node or static; default: from app.toml, or detected"

// NewDeploy makes `r app deploy`, and `r deploy`.
func NewDeploy(e *command.Env) *cobra.Command {
	o := &deployOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "deploy [SOURCE]",
		Short: "Deploy the source of a folder",
		Long: `Deploys the source of a folder: uploads the files that changed, builds them on the server, starts the new version beside
the old one, and shifts the traffic when the new one is ready. If that fails, the old version keeps serving.

SOURCE is a folder (default: this one), or a Git repository, as URL or URL#REF:FOLDER with a branch, tag or full commit
hash. The repository is cloned by the git of this machine, with its credentials. --image deploys an image that is built
already, with the app.toml of this folder, if there is one.

--preview makes the new version a preview: it has a host of its own and gets none of the requests to the app's hosts, which
stay as they are. Another deployment of the same name replaces it, and it ends --ttl after the last one. r app promote
--preview makes its version the active one.

The server runs the deployment: Ctrl-C only stops watching it. Exit codes: 3 the build failed, 4 the new version was not
healthy, 5 another deployment of the app is running.`,
		Example: "  r deploy\n  r app deploy --dir services/shop --app shop --message 'new cart'\n  r deploy --canary 10\n  r deploy --preview pr-12 --ttl 24h\n  r deploy --plan\n" +
			"  r deploy https://github.com/example/shop#v1.2\n  r deploy --image registry.example.com/shop:1.2",
		Args: command.Args(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && (cmd.Flags().Changed("dir") || o.image != ""):
				return exit.Usagef("%s is one source, --dir or --image another: give one of them", args[0])
			case o.image != "" && o.stack != "":
				return exit.Usagef("--stack is for a source, not for --image")
			}
			if cmd.Flags().Changed("canary") && (o.canary < 1 || o.canary > 99) {
				return exit.Usagef("--canary is %d, but must be a percentage from 1 to 99", o.canary)
			}
			if err := o.checkPreview(cmd); err != nil {
				return err
			}
			remove, err := o.fetch(cmd.Context(), args)
			if err != nil {
				return sourceError(err)
			}
			defer remove()
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.dir, "dir", "d", ".", "folder of the source")
	f.StringVar(&o.image, "image", "", "image to deploy in place of a source; its registry must be reachable from the server")
	f.StringVarP(&o.app, "app", "a", "", "app; default: name in app.toml, else the folder's name")
	f.StringVarP(&o.message, "message", "m", "", "reason for the change, shown in the history")
	f.BoolVar(&o.noCache, "no-cache", false, "build without the cache")
	f.StringVar(&o.stack, "stack", "", stackFlag)
	f.BoolVar(&o.detach, "detach", false, "return without waiting for the end of the rollout")
	f.Int64Var(&o.canary, "canary", 0, "percentage of the requests that the new version gets, until r app promote or r app rollback (default all)")
	f.StringVar(&o.preview.Name, "preview", "", "make the new version a preview of this name, with a host of its own")
	f.DurationVar(&o.preview.TTL, "ttl", app.DefaultPreviewTTL, "with --preview: time after which it ends")
	f.StringVar(&o.preview.Host, "host", "", "with --preview: its host (default NAME--APP below the ingress's local domain)")
	f.BoolVar(&o.plan, "plan", false, "only show how the source would be built")
	return cmd
}

func (o *deployOptions) run(ctx context.Context) error {
	name, err := command.AppName(o.app, o.dir)
	if err != nil {
		return sourceError(err)
	}
	tree, plan, err := o.prepare(ctx)
	if err != nil {
		return sourceError(err)
	}
	defer tree.Close()
	if o.plan {
		return o.showPlan(name, tree, plan)
	}
	v := rollout.New(o.Console, now)
	defer v.Close()
	v.Message(planText(o.Env, name, plan))
	if o.folder != "" {
		v.Message("uploads " + o.root + ", which has the lock file of the workspace " + o.folder)
	}
	for _, s := range tree.Skipped {
		v.Message("skipped " + s)
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	client := app.NewDeploysClient(c)
	src, err := upload.Send(ctx, client, tree, v)
	if err != nil {
		return err
	}
	req := &app.DeployRequest{
		Project: o.Project(), App: name, Create: true, Source: src, Git: gitInfo(ctx, o.dir, o.branch), Message: o.message, NoCache: &o.noCache, Stack: o.stack, Folder: o.folder,
	}
	if o.canary > 0 {
		req.Canary = &o.canary
	}
	if o.preview.Name != "" {
		req.Preview = &o.preview
	}
	resp, err := client.Deploy(ctx, req)
	if err != nil {
		return err
	}
	if resp.Deployment == nil {
		return errs.New(errs.Internal, "the server accepted the deployment without returning it")
	}
	d, err := entity.Decode[app.Deployment](resp.Deployment)
	if err != nil {
		return err
	}
	return rollout.Finish(ctx, o.Env, v, name, d, o.detach)
}

// checkPreview returns a usage error for flags of a preview that do not fit.
func (o *deployOptions) checkPreview(cmd *cobra.Command) error {
	flags := cmd.Flags()
	switch {
	case !flags.Changed("preview"):
		for _, name := range []string{"ttl", "host"} {
			if flags.Changed(name) {
				return exit.Usagef("--%s is for a preview: give --preview NAME too", name)
			}
		}
		return nil
	case o.canary > 0:
		return exit.Usagef("--preview gets no requests to the app's hosts, --canary a share of them: give one of them")
	}
	if err := o.preview.Validate(); err != nil {
		return exit.With(exit.Usage, errs.Wrap(err, "--preview"))
	}
	return nil
}

// sourceError gives mistakes in the source the exit code of a failed build.
func sourceError(err error) error {
	if errs.Is(err, errs.InvalidArgument) || errors.Is(err, stack.ErrNoStack) {
		return exit.With(exit.BuildFailed, err)
	}
	return err
}

// prepare walks the folder and detects how to build it. The server detects that
// again; here it is printed, and fails before the upload.
func (o *deployOptions) prepare(ctx context.Context) (*source.Tree, *stack.Plan, error) {
	dir, err := o.findRoot()
	if err != nil {
		return nil, nil, err
	}
	tree, err := upload.Walk(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	fsys := os.DirFS(dir)
	cfg, err := stack.Load(fsys, o.folder)
	if err == nil {
		cfg, err = stack.Choose(cfg, o.stack)
	}
	if err != nil {
		tree.Close()
		return nil, nil, err
	}
	plan, err := stack.Detect(fsys, cfg)
	if err != nil {
		tree.Close()
		return nil, nil, err
	}
	return tree, plan, nil
}

// findRoot returns the folder to upload: that of the source, or for a workspace without a lock file the one above it
// that has it. It does not look beyond the repository.
func (o *deployOptions) findRoot() (string, error) {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "source folder: %w", err)
	}
	if o.stack != "" && o.stack != "node" {
		return o.dir, nil
	}
	top := dir
	for range stack.MaxAbove {
		if _, err := os.Lstat(filepath.Join(top, ".git")); err == nil {
			break
		}
		top = filepath.Dir(top)
	}
	rel, err := filepath.Rel(top, dir)
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "source folder: %w", err)
	}
	folder := filepath.ToSlash(rel)
	root := stack.FindRoot(os.DirFS(top), folder)
	if root == folder {
		return o.dir, nil
	}
	o.root, o.folder = filepath.Join(top, filepath.FromSlash(root)), stack.Below(root, folder)
	return o.root, nil
}
