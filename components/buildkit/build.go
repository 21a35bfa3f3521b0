package buildkit

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	gateway "github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/secrets/secretsprovider"
	"github.com/moby/buildkit/util/staticfs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/tonistiigi/fsutil"
	fstypes "github.com/tonistiigi/fsutil/types"

	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
)

// Base is an image on this machine that stands for a name in a Dockerfile.
type Base struct {
	Dir    string        // OCI image layout
	Store  content.Store // has the image, if Dir is empty
	Digest string        // of the manifest
}

// Request is one image to build.
type Request struct {
	// ContextDir is what COPY copies from. It is read during the build only.
	ContextDir string
	// Dockerfile is the text.
	Dockerfile string
	// ImageName is the repository, without tag or digest, that the image is called in the image store.
	ImageName string
	// Bases maps names in FROM and COPY --from, as written there, to local images.
	// Every other name is pulled from a registry.
	Bases map[string]Base
	// CacheScope keeps the cache mounts of different tenants apart: the id of the project.
	CacheScope string
	// ContextKey is what incremental transfer of the context goes by: the id of
	// the app; empty: CacheScope.
	ContextKey string
	// Args are build arguments.
	Args map[string]string
	// Secrets are the values that RUN --mount=type=secret,id=ID gives to a step, by id. No layer has them, and the log
	// shows **** for them. The cache does not depend on them: a step is not run again because a value changed.
	Secrets map[string]string
	// Target is the stage to build; empty: the last.
	Target string
	// Platform is like "linux/amd64"; empty: the machine's.
	Platform string
	NoCache  bool
}

// ImageConfig is what the image says about how it runs.
type ImageConfig struct {
	Entrypoint []string
	Cmd        []string
	Env        []string
	WorkDir    string
	User       string
	Ports      []string // "8080/tcp"
	StopSignal string
	Labels     map[string]string
}

// Result is a built image.
type Result struct {
	Image  string // name@digest: its name in the image store of the instance
	Digest string // of the manifest
	Config ImageConfig
}

// The name under which base images are served to buildkitd.
const basesStore = "bases"

// Build builds an image into the instance's image store, unpacked. progress
// is called from one goroutine, in order, and never after Build returned.
//
// A build that fails by its own fault has class FailedPrecondition and carries
// a *Failure. Unavailable means that the builder went away: the same request may
// succeed later. ctx ends the build.
func (d *Daemon) Build(ctx context.Context, req Request, progress func(buildlog.Event)) (*Result, error) {
	if progress == nil {
		progress = func(buildlog.Event) {}
	}
	opt, attrs, err := d.solveOptions(req)
	if err != nil {
		return nil, err
	}
	defer d.use()()
	c, p, err := d.ensure(ctx)
	if err != nil {
		return nil, errs.Wrap(err, "build")
	}

	watched := make(chan struct{})
	watch, unwatch := context.WithCancel(ctx)
	go func() {
		defer close(watched)
		d.watchBelow(watch)
	}()
	defer func() {
		unwatch()
		<-watched
	}()

	var config []byte
	t := newTracker(progress, newMask(req.Secrets))
	updates := make(chan *client.SolveStatus)
	tracked := make(chan struct{})
	go func() {
		defer close(tracked)
		for s := range updates {
			t.update(s)
		}
	}()
	resp, err := c.Build(ctx, opt, "runtime", func(ctx context.Context, g gateway.Client) (*gateway.Result, error) {
		res, err := g.Solve(ctx, gateway.SolveRequest{Frontend: "dockerfile.v0", FrontendOpt: attrs})
		if err != nil {
			return nil, err
		}
		config = res.Metadata[exptypes.ExporterImageConfigKey]
		return res, nil
	}, updates)
	<-tracked
	if err != nil {
		return nil, d.explain(ctx, t, err, p, d.stepLimits())
	}

	digest := resp.ExporterResponse[exptypes.ExporterImageDigestKey]
	if digest == "" {
		return nil, errs.New(errs.Internal, "build: buildkitd did not say which image it made")
	}
	res := &Result{Image: req.ImageName + "@" + digest, Digest: digest}
	if res.Config, err = decodeConfig(config); err != nil {
		return nil, errs.New(errs.Internal, "build: decode image config: %w", err)
	}
	return res, nil
}

// watchBelow starts buildkitd again when containerd was, until ctx ends: a step
// whose containerd died may hang in buildkitd for as long as its process runs.
func (d *Daemon) watchBelow(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		below, err := d.containerdProcess(ctx)
		if err != nil || d.startedOn(below) {
			continue // it is away, or was never
		}
		if err := d.Start(ctx); err != nil && ctx.Err() == nil {
			d.cfg.Logger.Warn("buildkitd does not start", "error", err)
		}
	}
}

func (d *Daemon) solveOptions(req Request) (client.SolveOpt, map[string]string, error) {
	var opt client.SolveOpt
	fail := func(format string, args ...any) (client.SolveOpt, map[string]string, error) {
		return opt, nil, errs.New(errs.InvalidArgument, "build: "+format, args...)
	}
	if !filepath.IsAbs(req.ContextDir) {
		return fail("context directory %q is not absolute", req.ContextDir)
	}
	if req.ImageName == "" || strings.ContainsAny(req.ImageName, "@, ") {
		return fail("image name %q", req.ImageName)
	}
	contextFS, err := fsutil.NewFS(req.ContextDir)
	if err != nil {
		return fail("context directory: %w", err)
	}
	dockerfile := staticfs.NewFS()
	dockerfile.Add("Dockerfile", &fstypes.Stat{Mode: 0o644, Path: "Dockerfile"}, []byte(withoutSyntax(req.Dockerfile)))

	attrs := map[string]string{
		"filename":           "Dockerfile",
		"hostname":           hostname,
		"image-resolve-mode": "default",
	}
	if req.CacheScope != "" {
		attrs["build-arg:BUILDKIT_CACHE_MOUNT_NS"] = req.CacheScope
	}
	for k, v := range req.Args {
		if !strings.HasPrefix(k, "BUILDKIT_") { // those configure the frontend
			attrs["build-arg:"+k] = v
		}
	}
	if req.Target != "" {
		attrs["target"] = req.Target
	}
	if req.Platform != "" {
		attrs["platform"] = req.Platform
	}
	if req.NoCache {
		attrs["no-cache"] = ""
	}
	values := map[string][]byte{}
	for id, value := range req.Secrets {
		values[id] = []byte(value)
	}

	opt = client.SolveOpt{
		LocalMounts: map[string]fsutil.FS{"context": contextFS, "dockerfile": dockerfile},
		SharedKey:   cmp.Or(req.ContextKey, req.CacheScope),
		Session:     []session.Attachable{secretsprovider.FromMap(values)},
		// buildkitd keeps the output of builds in its history, as steps wrote it.
		Internal: len(values) > 0,
		Exports: []client.ExportEntry{{
			Type: client.ExporterImage,
			Attrs: map[string]string{
				string(exptypes.OptKeyDanglingPrefix):   req.ImageName,
				string(exptypes.OptKeyUnpack):           "true",
				string(exptypes.OptKeyOCITypes):         "true",
				string(exptypes.OptKeyLayerCompression): "zstd",
				string(exptypes.OptKeyCompressionLevel): "1",
			},
		}},
	}
	stores := map[string]content.Store{}
	for ref, b := range req.Bases {
		id := basesStore + "-" + strings.TrimPrefix(b.Digest, "sha256:")
		stores[id] = b.Store
		if b.Dir != "" {
			stores[id] = layoutStore{b.Dir}
		}
		attrs["context:"+contextName(ref)] = "oci-layout://" + id + "@" + b.Digest
	}
	opt.OCIStores = stores
	return opt, attrs, nil
}

func decodeConfig(b []byte) (ImageConfig, error) {
	var img ocispec.Image
	if err := json.Unmarshal(b, &img); err != nil {
		return ImageConfig{}, err
	}
	c := ImageConfig{
		Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd, Env: img.Config.Env,
		WorkDir: img.Config.WorkingDir, User: img.Config.User,
		StopSignal: img.Config.StopSignal, Labels: maps.Clone(img.Config.Labels),
	}
	for p := range img.Config.ExposedPorts {
		c.Ports = append(c.Ports, p)
	}
	return c, nil
}
