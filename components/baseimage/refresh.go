package baseimage

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// keepReplaced is how long an image stays after a newer one took its place: longer than any build may read it.
const keepReplaced = 48 * time.Hour

// Update is a newer version of a package of an image.
type Update struct {
	Package string `json:"package"`
	From    string `json:"from,omitempty"` // empty: the newer version of another package needs it
	To      string `json:"to"`
}

// Outdated is an image with packages that have newer versions.
type Outdated struct {
	Image   string   `json:"image"`   // "python"
	Version string   `json:"version"` // "3.11"
	Release string   `json:"release"` // "bookworm"
	Updates []Update `json:"updates"` // by the name of the package
}

// rounds is the content of rounds.json.
type rounds struct {
	// Round counts how often the images of a release of the distribution were made again, by its code name.
	Round map[string]int `json:"round"`
	// Replaced maps the folder of each replaced image to the time of its replacement.
	Replaced map[string]time.Time `json:"replaced"`
}

func (s *Store) roundsFile() string { return filepath.Join(s.cfg.Dir, "rounds.json") }

// rounds reads rounds.json, which need not exist.
func (s *Store) rounds() (*rounds, error) {
	r := &rounds{Round: map[string]int{}, Replaced: map[string]time.Time{}}
	b, err := os.ReadFile(s.roundsFile())
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read rounds of images: %w", err)
	}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, errs.New(errs.Corrupt, "%s: %w", s.roundsFile(), err).WithHint("remove the file: images are made again")
	}
	return r, nil
}

func (s *Store) writeRounds(r *rounds) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = atomicfile.Write(s.roundsFile(), append(b, '\n'), 0o644)
	}
	if err != nil {
		return errs.New(errs.Unavailable, "write rounds of images: %w", err)
	}
	return nil
}

// round is how often the images of a release were made again.
func (s *Store) round(codename string) (int, error) {
	if n, ok := s.ahead[codename]; ok {
		return n, nil
	}
	r, err := s.rounds()
	if err != nil {
		return 0, err
	}
	return r.Round[codename], nil
}

// inRound returns a store that makes images for a later round of a release, before that round begins for builds.
func (s *Store) inRound(codename string, n int) *Store {
	next := New(s.cfg)
	next.ahead = map[string]int{codename: n}
	return next
}

// existing is an image that exists and that Ensure would return.
type existing struct {
	ref     Ref
	recipe  *recipe
	release string // of the distribution that it is made of
	dir     string
}

var keyedDir = regexp.MustCompile(`^(.+)-[0-9a-f]{16}$`)

// existing returns the images of packages that exist and are current.
func (s *Store) existing(ctx context.Context) ([]existing, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.Unavailable, "list images: %w", err)
	}
	host, err := readHost()
	if err != nil {
		return nil, err
	}
	var found []existing
	for _, e := range entries {
		m := keyedDir.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if img, ok := s.identify(ctx, host, e.Name(), m[1]); ok {
			found = append(found, img)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return found, nil
}

// identify finds the recipe that makes a folder: it tries each image that the folder's name may stand for.
func (s *Store) identify(ctx context.Context, host *host, folder, named string) (existing, bool) {
	dir := filepath.Join(s.cfg.Dir, folder)
	if _, err := os.Stat(filepath.Join(dir, "index.json")); err != nil {
		return existing{}, false
	}
	for _, release := range host.releases() {
		for _, ref := range refsFor(named, release) {
			r, err := s.recipe(ctx, ref)
			if err != nil || r.dirName() != folder {
				continue
			}
			root := r
			for root.parent != nil {
				root = root.parent
			}
			return existing{ref: ref, recipe: r, release: root.version, dir: dir}, root.name == "debian"
		}
	}
	return existing{}, false
}

// refsFor returns the images that NAME-VERSION may stand for: both NAME and VERSION may contain hyphens.
func refsFor(named, release string) []Ref {
	var refs []Ref
	for i, c := range named {
		if c != '-' {
			continue
		}
		name, version := named[:i], named[i+1:]
		switch sandbox, ok := strings.CutPrefix(name, "sandbox-"); {
		case ok:
			refs = append(refs, Ref{Name: "sandbox", Version: sandbox})
		case name == "debian", name == "c":
			refs = append(refs, Ref{Name: name, Release: release})
		default:
			refs = append(refs, Ref{Name: name, Version: version, Release: release})
		}
	}
	return refs
}

// dpkgStatus returns dpkg's list of the packages in an image; nil if the image has no such list.
func (i *Image) dpkgStatus() ([]byte, error) {
	m, _, err := i.read()
	if err != nil {
		return nil, err
	}
	for _, l := range slices.Backward(m.Layers) {
		var status []byte
		err := walkLayer(filepath.Join(i.Dir, "blobs", "sha256", l.Digest.Encoded()), func(h *tar.Header, body []byte) {
			if strings.TrimPrefix(h.Name, "./") == "var/lib/dpkg/status" {
				status = body
			}
		})
		if err != nil || status != nil {
			return status, err
		}
	}
	return nil, nil
}

// apt is a private state of the package manager: the lists of packages of a release, without an installed system.
type apt struct {
	store *Store
	dir   string
	args  []string
}

// newApt fetches the lists of a release into a folder.
func (s *Store) newApt(ctx context.Context, dir string, h *host) (*apt, error) {
	for _, d := range []string{"lists/partial", "cache/archives/partial", "state"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, errs.New(errs.Unavailable, "state of apt: %w", err)
		}
	}
	files := map[string]string{"sources.list": strings.Join(h.sources, "\n") + "\n", "apt.conf": h.aptConf, "status": "", "state/extended_states": ""}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, errs.New(errs.Unavailable, "state of apt: %w", err)
		}
	}
	a := &apt{store: s, dir: dir}
	for _, o := range [][2]string{
		{"Dir::State", "state"}, {"Dir::State::lists", "lists"}, {"Dir::State::status", "status"}, {"Dir::Cache", "cache"}, {"Dir::Etc::sourcelist", "sources.list"},
	} {
		a.args = append(a.args, "-o", o[0]+"="+filepath.Join(dir, o[1]))
	}
	a.args = append(a.args, "-c", filepath.Join(dir, "apt.conf"), "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Dir::Etc::preferences=/dev/null",
		"-o", "Dir::Etc::preferencesparts=/dev/null", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1")
	_, err := a.run(ctx, "update", "-q", "-o", "APT::Update::Error-Mode=any")
	return a, err
}

func (a *apt) run(ctx context.Context, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	err := a.store.run(ctx, refreshName, func(cmd *exec.Cmd) {
		cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
	}, "apt-get", append(slices.Clone(a.args), args...)...)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "apt-get %s: %w", args[0], err).WithHint("it wrote:\n%s", strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// updates returns the packages of an image of which the release has newer versions. status is dpkg's list of the image.
func (a *apt) updates(ctx context.Context, status []byte) ([]Update, error) {
	if err := os.WriteFile(filepath.Join(a.dir, "status"), status, 0o644); err != nil {
		return nil, errs.New(errs.Unavailable, "state of apt: %w", err)
	}
	out, err := a.run(ctx, "dist-upgrade", "-q", "--simulate")
	if err != nil {
		return nil, err
	}
	return parseUpdates(out), nil
}

// A line such as "Inst libc6 [2.36-9] (2.36-10 Debian-Security:12/stable-security [amd64])".
var instLine = regexp.MustCompile(`(?m)^Inst (\S+) (?:\[([^\]]+)\] )?\((\S+)`)

func parseUpdates(simulated []byte) []Update {
	var list []Update
	for _, m := range instLine.FindAllSubmatch(simulated, -1) {
		list = append(list, Update{Package: string(m[1]), From: string(m[2]), To: string(m[3])})
	}
	slices.SortFunc(list, func(a, b Update) int { return strings.Compare(a.Package, b.Package) })
	return list
}

// Refresh finds the images with packages of which the distribution has newer versions. It makes all images of their
// release again with the newest packages; builds that begin afterwards use the new images. With dryRun it only returns
// the outdated images. One Refresh of a machine runs at a time.
//
// The round of a release begins once all its images are made. If a Refresh fails or is killed, builds use the old
// images, and the next Refresh reuses the new images that are complete. A replaced image stays for two days, because
// builds may read it; the first Refresh afterwards removes it.
func (s *Store) Refresh(ctx context.Context, dryRun bool, progress func(string)) ([]Outdated, error) {
	if progress == nil {
		progress = func(string) {}
	}
	unlock, err := s.lockRefresh(ctx, progress)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if dryRun {
		images, err := s.existing(ctx)
		if err != nil {
			return nil, err
		}
		return s.outdated(ctx, images, progress)
	}
	return s.refresh(ctx, progress)
}

// lockRefresh takes the lock of a refresh.
func (s *Store) lockRefresh(ctx context.Context, progress func(string)) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(s.cfg.Dir, locksDir), 0o755); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "image cache: %w", err)
	}
	return lock(ctx, s.refreshLock(), func() { progress("waiting for another refresh of base images") })
}

// remakeOutdated makes the images of each release again of which an image is outdated, and removes replaced ones.
func (s *Store) remakeOutdated(ctx context.Context, progress func(string)) ([]Outdated, error) {
	images, err := s.existing(ctx)
	if err != nil {
		return nil, err
	}
	outdated, err := s.outdated(ctx, images, progress)
	if err != nil {
		return outdated, err
	}
	var again []string
	for _, o := range outdated {
		if !slices.Contains(again, o.Release) {
			again = append(again, o.Release)
		}
	}
	for _, release := range again {
		if err := s.remake(ctx, release, images, progress); err != nil {
			return outdated, errs.Wrap(err, "make the images of %s again", release)
		}
	}
	return outdated, s.removeReplaced(time.Now())
}

// outdated returns the images of which the distribution has newer packages.
func (s *Store) outdated(ctx context.Context, images []existing, progress func(string)) ([]Outdated, error) {
	tmp, err := s.scratch(refreshName)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	lists := map[string]*apt{}
	var found []Outdated
	for _, e := range images {
		a := lists[e.release]
		if a == nil {
			h, err := hostFor(e.release)
			if err != nil {
				return nil, err
			}
			progress("reading which packages " + e.release + " has now")
			if a, err = s.newApt(ctx, filepath.Join(tmp, e.release), h); err != nil {
				return nil, err
			}
			lists[e.release] = a
		}
		img, err := load(e.dir, e.recipe)
		if err != nil {
			return nil, err
		}
		status, err := img.dpkgStatus()
		if err != nil {
			return nil, errs.New(errs.Corrupt, "read image %s: %w", e.dir, err).WithHint("remove the directory; it is made again")
		}
		updates, err := a.updates(ctx, status)
		if err != nil {
			return nil, errs.Wrap(err, "updates of image %s", e.recipe.name)
		}
		if len(updates) > 0 {
			found = append(found, Outdated{Image: e.recipe.name, Version: e.recipe.version, Release: e.release, Updates: updates})
		}
	}
	return found, nil
}

// remake makes the images of a release as of its next round, and begins that round when all are there.
func (s *Store) remake(ctx context.Context, release string, images []existing, progress func(string)) error {
	r, err := s.rounds()
	if err != nil {
		return err
	}
	n := r.Round[release] + 1
	next := s.inRound(release, n)
	for _, e := range images {
		if e.release != release {
			continue
		}
		recipe, err := next.recipe(ctx, e.ref)
		if err != nil {
			return errs.Wrap(err, "base image %s", e.ref)
		}
		if recipe.dirName() == e.recipe.dirName() {
			continue
		}
		if _, err := next.ensure(ctx, recipe, progress); err != nil {
			return errs.Wrap(err, "base image %s", e.ref)
		}
		r.Replaced[e.recipe.dirName()] = time.Now().UTC()
	}
	r.Round[release] = n
	if err := s.writeRounds(r); err != nil {
		return err
	}
	progress(fmt.Sprintf("round %d of the images of %s begins", n, release))
	return nil
}

// removeReplaced removes images that were replaced long enough ago.
func (s *Store) removeReplaced(now time.Time) error {
	r, err := s.rounds()
	if err != nil {
		return err
	}
	if !r.removable(now) {
		return nil
	}
	for folder, at := range r.Replaced {
		if now.Sub(at) < keepReplaced {
			continue
		}
		dir := filepath.Join(s.cfg.Dir, folder)
		// A folder without this file is no image: if the removal is killed, no part of it looks like a whole image.
		if err := os.Remove(filepath.Join(dir, "index.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.Unavailable, "remove a replaced image: %w", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			return errs.New(errs.Unavailable, "remove a replaced image: %w", err)
		}
		delete(r.Replaced, folder)
	}
	return s.writeRounds(r)
}

// removable reports whether an image was replaced long enough ago.
func (r *rounds) removable(now time.Time) bool {
	for _, at := range r.Replaced {
		if now.Sub(at) >= keepReplaced {
			return true
		}
	}
	return false
}
