package baseimage

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// Bounds of downloads.
const (
	maxDownload = 1 << 30
	maxMetadata = 64 << 20
)

var httpClient = &http.Client{
	Timeout: 15 * time.Minute,
	Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		ForceAttemptHTTP2:     true,
	},
}

// get opens a URL. NotFound if the server does not have the file or withholds it (404, 410, 403: mirrors withhold new
// versions that way); Unavailable if the server could not be asked.
func get(ctx context.Context, url string, header ...string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "fetch: %w", err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, errs.New(errs.Unavailable, "fetch: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
		return resp.Body, nil
	case http.StatusNotFound, http.StatusGone, http.StatusForbidden:
		resp.Body.Close()
		return nil, errs.New(errs.NotFound, "fetch %s: %s", url, resp.Status)
	}
	resp.Body.Close()
	return nil, errs.New(errs.Unavailable, "fetch %s: %s", url, resp.Status)
}

// download writes the content of a URL to a file.
func download(ctx context.Context, url, file string) error {
	body, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer body.Close()
	f, err := os.Create(file)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "download: %w", err)
	}
	defer f.Close()
	n, err := io.Copy(f, io.LimitReader(body, maxDownload+1))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return errs.New(errs.Unavailable, "download %s: %w", url, err)
	case n > maxDownload:
		return errs.New(errs.ResourceExhausted, "download %s: larger than %d bytes", url, maxDownload)
	}
	return f.Close()
}

// fetchText returns a small answer as text.
func fetchText(ctx context.Context, url string, header ...string) ([]byte, error) {
	body, err := get(ctx, url, header...)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxMetadata))
	if err != nil {
		return nil, errs.New(errs.Unavailable, "fetch %s: %w", url, err)
	}
	return b, nil
}

// goProxy returns the first proxy of the environment's GOPROXY, or the public
// one.
func goProxy() string {
	for _, p := range strings.FieldsFunc(os.Getenv("GOPROXY"), func(r rune) bool { return r == ',' || r == '|' }) {
		if strings.HasPrefix(p, "http://") || strings.HasPrefix(p, "https://") {
			return strings.TrimSuffix(p, "/")
		}
	}
	return "https://proxy.golang.org"
}

// npmRegistry returns the environment's registry, or the public one.
func npmRegistry() string {
	for _, name := range []string{"NPM_CONFIG_REGISTRY", "npm_config_registry"} {
		if v := os.Getenv(name); strings.HasPrefix(v, "http://") || strings.HasPrefix(v, "https://") {
			return strings.TrimSuffix(v, "/")
		}
	}
	return "https://registry.npmjs.org"
}

// How long an answer about the existing versions is used. A newer version is
// another image, which should not be made in the middle of a deploy every few
// days.
const versionsAge = 14 * 24 * time.Hour

type versionList struct {
	Asked    time.Time `json:"asked"`
	Versions []string  `json:"versions"`
}

func (s *Store) versionsFile() string { return filepath.Join(s.cfg.Dir, "versions.json") }

// knownVersions are the last answers by product.
func (s *Store) knownVersions() map[string]versionList {
	known := map[string]versionList{}
	if b, err := os.ReadFile(s.versionsFile()); err == nil {
		_ = json.Unmarshal(b, &known) // a damaged file: ask again
	}
	return known
}

// keepVersions replaces the last answers. A failure shows in the log: they are a cache.
func (s *Store) keepVersions(known map[string]versionList) {
	b, err := json.Marshal(known)
	if err == nil {
		err = os.MkdirAll(s.cfg.Dir, 0o755)
	}
	if err == nil {
		err = atomicfile.Write(s.versionsFile(), b, 0o644, atomicfile.Volatile)
	}
	if err != nil {
		s.cfg.Logger.Warn("cannot keep the list of versions", "error", err)
	}
}

// versions returns the result of list for a product. It calls list at most once
// per period unless now is set, and uses the last answer when the registry
// cannot be asked.
func (s *Store) versions(ctx context.Context, product string, now bool, list func(context.Context) ([]string, error)) ([]string, error) {
	known := s.knownVersions()
	old := known[product]
	if !now && time.Since(old.Asked) < versionsAge && len(old.Versions) > 0 {
		return old.Versions, nil
	}
	v, err := list(ctx)
	if err != nil {
		if len(old.Versions) > 0 {
			s.cfg.Logger.Warn("cannot ask for versions; using the last answer", "product", product, "asked", old.Asked, "error", err)
			return old.Versions, nil
		}
		return nil, err
	}
	known[product] = versionList{time.Now(), v}
	s.keepVersions(known)
	return v, nil
}
