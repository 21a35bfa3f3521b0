// Package registry pushes images to a repository of an OCI registry, from which other
// machines pull them. An image gets the tag <algorithm>-<digest>, so that registries
// which collect untagged images keep it, and is named by its digest.
package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/pkg/errs"
)

// parallelBlobs is how many blobs of an image are sent at once.
const parallelBlobs = 4

// quiet is for containerd, which logs every answer other than 200. Errors are returned
// anyway.
var quiet = logrus.NewEntry(&logrus.Logger{Out: io.Discard, Formatter: &logrus.TextFormatter{}, Level: logrus.PanicLevel})

// Config of a Registry.
type Config struct {
	// Repository is host[:port]/path, such as registry.example.com/runtime.
	Repository string
	// CredentialsFile is a configuration file of Docker's client, with auths or credential helpers; empty: no credentials.
	CredentialsFile string
	// CAFile has the certificates of the authorities that sign the registry's, in PEM; empty: those of the machine.
	CAFile string
	// PlainHTTP: the registry has no TLS.
	PlainHTTP bool
	Logger    *slog.Logger
}

// Registry is one repository. Its methods may be called at once.
type Registry struct {
	cfg   Config
	locks agentdriver.KeyLock // by digest

	mu     sync.Mutex
	pushed map[digest.Digest]bool // by this process
}

// New returns InvalidArgument if the repository is none; it does no IO.
func New(cfg Config) (*Registry, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	named, err := reference.ParseNamed(cfg.Repository)
	if err != nil || !reference.IsNameOnly(named) {
		return nil, errs.New(errs.InvalidArgument, "registry %q: not the name of a repository with its host, such as registry.example.com/runtime", cfg.Repository)
	}
	if cfg.PlainHTTP && cfg.CAFile != "" {
		return nil, errs.New(errs.InvalidArgument, "registry %s: it has either no TLS or an authority that signs its certificate", cfg.Repository)
	}
	return &Registry{cfg: cfg, pushed: map[digest.Digest]bool{}}, nil
}

// Push makes the repository have an image, with its content for this machine's
// platform, and returns the name by which it is pulled. An image that this process
// pushed before costs nothing; see Forget.
func (r *Registry) Push(ctx context.Context, store content.Provider, manifest ocispec.Descriptor) (string, error) {
	name := r.cfg.Repository + "@" + manifest.Digest.String()
	unlock, err := r.locks.Lock(ctx, manifest.Digest.String())
	if err != nil {
		return "", err
	}
	defer unlock()
	r.mu.Lock()
	known := r.pushed[manifest.Digest]
	r.mu.Unlock()
	if known {
		return name, nil
	}
	if err := r.push(ctx, store, manifest); err != nil {
		return "", registryError(err, "push image %s", name)
	}
	r.mu.Lock()
	r.pushed[manifest.Digest] = true
	r.mu.Unlock()
	return name, nil
}

// Forget makes the next Push of an image look for it in the repository again. It is
// for an image that could not be pulled.
func (r *Registry) Forget(d digest.Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pushed, d)
}

func (r *Registry) push(ctx context.Context, store content.Provider, manifest ocispec.Descriptor) error {
	ctx = log.WithLogger(ctx, quiet)
	resolver, err := r.resolver(ctx)
	if err != nil {
		return err
	}
	tag := r.cfg.Repository + ":" + manifest.Digest.Algorithm().String() + "-" + manifest.Digest.Encoded()
	// Whatever fails here fails in the push too, which says why: some registries let an
	// account look only at repositories that exist.
	if _, found, err := resolver.Resolve(ctx, tag); err == nil && found.Digest == manifest.Digest {
		return nil
	}
	r.cfg.Logger.Info("pushing an image", "repository", r.cfg.Repository, "digest", manifest.Digest)
	pusher, err := resolver.Pusher(ctx, tag+"@"+manifest.Digest.String())
	if err != nil {
		return err
	}
	return remotes.PushContent(ctx, pusher, manifest, store, semaphore.NewWeighted(parallelBlobs), platforms.Default(), nil)
}

// resolver reads the files of the configuration, which may change while a server runs.
func (r *Registry) resolver(ctx context.Context) (remotes.Resolver, error) {
	options := config.HostOptions{DefaultScheme: "https"}
	if r.cfg.PlainHTTP {
		options.DefaultScheme = "http"
	}
	if r.cfg.CAFile != "" {
		pem, err := os.ReadFile(r.cfg.CAFile)
		if err != nil {
			return nil, errs.New(errs.FailedPrecondition, "certificates of the registry's authority: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, errs.New(errs.FailedPrecondition, "%s has no certificate in PEM", r.cfg.CAFile)
		}
		options.DefaultTLS = &tls.Config{RootCAs: roots}
	}
	if r.cfg.CredentialsFile != "" {
		credentials, err := readCredentials(r.cfg.CredentialsFile)
		if err != nil {
			return nil, err
		}
		options.Credentials = credentials
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: config.ConfigureHosts(ctx, options)}), nil
}

// dockerHub is by which name Docker's client keeps the credentials of docker.io.
const dockerHub = "https://index.docker.io/v1/"

// readCredentials returns what a configuration file of Docker's client says of a host.
func readCredentials(path string) (func(host string) (user, secret string, _ error), error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "credentials of the registry: %w", err)
	}
	defer f.Close()
	file := configfile.New(path)
	if err := file.LoadFromReader(f); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "credentials of the registry: %s: %w", path, err).
			WithHint("write it with `docker login`, or as {\"auths\": {\"HOST\": {\"auth\": \"base64 of USER:PASSWORD\"}}}")
	}
	return func(host string) (string, string, error) {
		if strings.HasSuffix(host, "docker.io") {
			host = dockerHub
		}
		auth, err := file.GetAuthConfig(host)
		if err != nil {
			return "", "", errs.New(errs.FailedPrecondition, "credentials of %s: %w", host, err)
		}
		if auth.IdentityToken != "" { // containerd takes a token of a user without a name
			return "", auth.IdentityToken, nil
		}
		return auth.Username, auth.Password, nil
	}, nil
}

// registryError gives an error its class: FailedPrecondition for what the operator
// has to put right, Unavailable for a registry that does not answer as it should.
func registryError(err error, format string, args ...any) error {
	var typed *errs.Error
	if errors.As(err, &typed) {
		return errs.Wrap(err, format, args...)
	}
	what := errs.New(errs.Internal, format, args...).Message
	class, hint := errs.Unavailable, "is the registry reached from this machine, and trusted by its certificate authorities?"
	var status remoteerrors.ErrUnexpectedStatus
	switch {
	case errors.Is(err, context.Canceled):
		class, hint = errs.Canceled, ""
	case errors.Is(err, context.DeadlineExceeded):
		class = errs.DeadlineExceeded
	case errors.Is(err, docker.ErrInvalidAuthorization), errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err),
		errors.As(err, &status) && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden):
		class, hint = errs.FailedPrecondition, "the server's credentials must permit to push to the repository"
	case errors.As(err, &status) && status.StatusCode == http.StatusNotFound:
		class, hint = errs.FailedPrecondition, "does the registry make repositories by itself? Otherwise make it first"
	}
	e := errs.New(class, "%s: %w", what, err)
	if hint != "" {
		return e.WithHint("%s", hint)
	}
	return e
}
