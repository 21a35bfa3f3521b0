package baseimage

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"miren.dev/runtime/pkg/errs"
)

// Policy says when images that this machine can make are pulled from a registry
// instead.
type Policy string

// Policies.
const (
	RegistryAuto   Policy = "auto"   // when Docker Hub can be reached
	RegistryAlways Policy = "always" // pull every image that is not our own
	RegistryNever  Policy = "never"  // make every image that this machine can make
)

// hub is the URL that tests whether Docker Hub can be reached; any answer will
// do.
const (
	hub        = "https://registry-1.docker.io/v2/"
	hubTimeout = 3 * time.Second
	hubAge     = 5 * time.Minute
)

// Resolve returns the local images that stand for names in a Dockerfile, and makes those that do not exist. A name that
// is absent from the result must be pulled. notes tell people where an image differs from the one that its name
// promises.
func (s *Store) Resolve(ctx context.Context, names []string, progress func(string)) (images map[string]*Image, notes []string, err error) {
	images = map[string]*Image{}
	for _, name := range names {
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			return nil, nil, errs.New(errs.InvalidArgument, "image name %q: %w", name, err)
		}
		own := strings.HasPrefix(reference.FamiliarName(named), Prefix)
		if !own {
			if reference.Domain(named) != "docker.io" || s.pull(ctx) {
				continue
			}
		}
		ref, err := Lookup(name)
		if err != nil {
			return nil, nil, err
		}
		img, err := s.Ensure(ctx, ref, progress)
		if err != nil {
			return nil, nil, err
		}
		images[name] = img
		if ref.Note != "" {
			notes = append(notes, ref.Note)
		}
		if !own && ref.Version != "" && !covers(ref.Version, img.Version) {
			notes = append(notes, name+" stands for "+img.Name+" "+img.Version+", which is what this machine has packages of")
		}
	}
	slices.Sort(notes)
	return images, slices.Compact(notes), nil
}

// pull reports whether images of Docker Hub are pulled.
func (s *Store) pull(ctx context.Context) bool {
	switch s.cfg.Registry {
	case RegistryAlways:
		return true
	case RegistryNever:
		return false
	}
	s.mu.Lock()
	known := time.Since(s.hubAsked) < hubAge
	reachable := s.hubReachable
	s.mu.Unlock()
	if known {
		return reachable
	}
	reachable = reach(ctx, hub)
	if ctx.Err() == nil {
		s.mu.Lock()
		s.hubAsked, s.hubReachable = time.Now(), reachable
		s.mu.Unlock()
	}
	return reachable
}

func reach(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusUnauthorized
}
