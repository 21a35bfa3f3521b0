package baseimage

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// Run is the record of the last refresh of a machine's base images, by a server or by a command.
type Run struct {
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"` // nil: it runs, or it was ended in the middle
	// SucceededAt is the end of the last refresh without an error; nil: there was none.
	SucceededAt *time.Time `json:"succeeded_at,omitempty"`
	// Failures counts the refreshes since then, with the one that runs.
	Failures int `json:"failures,omitempty"`
	// Made are the images that had packages with newer versions ("python 3.11"). Their whole release was made again.
	Made   []string `json:"made,omitempty"`
	Error  string   `json:"error,omitempty"`
	Advice string   `json:"advice,omitempty"`

	Running bool `json:"-"` // a process refreshes now
}

func (s *Store) runFile() string { return filepath.Join(s.cfg.Dir, "refresh.json") }

// refreshName is the name of the lock of a refresh.
const refreshName = "refresh"

// refreshLock is the file that a refresh locks.
func (s *Store) refreshLock() string { return filepath.Join(s.cfg.Dir, locksDir, refreshName) }

// LastRun returns the record of the last refresh; nil if there was none.
func (s *Store) LastRun() (*Run, error) {
	// In this order: a refresh that ends between the two has a record with an end.
	running := s.refreshing()
	b, err := os.ReadFile(s.runFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read the record of the last refresh: %w", err)
	}
	r := new(Run)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, errs.New(errs.Corrupt, "%s: %w", s.runFile(), err).WithHint("remove the file; the next refresh writes it")
	}
	if r.EndedAt == nil {
		r.Running = running
		if !running {
			r.Error, r.Advice = "it was ended in the middle", "builds use the old images; the next refresh goes on"
		}
	}
	return r, nil
}

// refreshing reports whether a process holds the lock of a refresh.
func (s *Store) refreshing() bool {
	f, err := os.Open(s.refreshLock())
	if err != nil {
		return false
	}
	defer f.Close() // it unlocks too
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

func (s *Store) writeRun(r *Run) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = atomicfile.Write(s.runFile(), append(b, '\n'), 0o644)
	}
	if err != nil {
		return errs.New(errs.Unavailable, "write the record of the refresh: %w", err)
	}
	return nil
}

// beginRun records that a refresh begins. Only the process that holds the lock may call it.
func (s *Store) beginRun() (*Run, error) {
	last, err := s.LastRun()
	if errs.Is(err, errs.Corrupt) {
		last, err = nil, nil // it is only a record
	}
	if err != nil {
		return nil, err
	}
	r := &Run{StartedAt: time.Now().UTC(), Failures: 1}
	if last != nil {
		r.SucceededAt, r.Failures = last.SucceededAt, last.Failures+1
	}
	return r, s.writeRun(r)
}

// endRun records how a refresh ended. One that was canceled stays as one that was ended in the middle.
func (s *Store) endRun(ctx context.Context, r *Run, made []Outdated, err error) error {
	if ctx.Err() != nil {
		return err
	}
	now := time.Now().UTC()
	r.EndedAt = &now
	if err != nil {
		r.Error, r.Advice = err.Error(), errs.HintOf(err)
	} else {
		r.SucceededAt, r.Failures = &now, 0
		for _, o := range made {
			r.Made = append(r.Made, o.Image+" "+o.Version)
		}
	}
	return errors.Join(err, s.writeRun(r))
}

// RefreshDue refreshes the images if the schedule says that a refresh is due, and reports whether it did. Of several
// servers of the machine one does it: the others wait for it, and find that none is due any more.
func (s *Store) RefreshDue(ctx context.Context, schedule Schedule, progress func(string)) (bool, error) {
	due := func() (bool, error) {
		last, err := s.LastRun()
		if errs.Is(err, errs.Corrupt) {
			last, err = nil, nil
		}
		now := time.Now()
		next := schedule.Next(last, now)
		return err == nil && !next.IsZero() && !next.After(now), err
	}
	if ok, err := due(); !ok {
		return false, err
	}
	unlock, err := s.lockRefresh(ctx, progress)
	if err != nil {
		return false, err
	}
	defer unlock()
	if ok, err := due(); !ok {
		return false, err
	}
	_, err = s.refresh(ctx, progress)
	return true, err
}

// refresh is Refresh with the lock held, and with a record of the run.
func (s *Store) refresh(ctx context.Context, progress func(string)) ([]Outdated, error) {
	r, err := s.beginRun()
	if err != nil {
		return nil, err
	}
	outdated, err := s.remakeOutdated(ctx, progress)
	return outdated, s.endRun(ctx, r, outdated, err)
}

// RemoveReplaced removes the images that were replaced two days ago or earlier.
func (s *Store) RemoveReplaced(ctx context.Context) error {
	r, err := s.rounds()
	if err != nil || !r.removable(time.Now()) {
		return err
	}
	unlock, err := s.lockRefresh(ctx, func(string) {})
	if err != nil {
		return err
	}
	defer unlock()
	return s.removeReplaced(time.Now())
}

// Rounds returns a text that changes whenever a refresh changes which images builds use; "" before the first.
func (s *Store) Rounds() (string, error) {
	r, err := s.rounds()
	if err != nil || len(r.Round) == 0 {
		return "", err
	}
	b, err := json.Marshal(r.Round) // sorted by name
	return string(b), err
}

// Digests returns the digests of the images on this machine, with the time at which another one replaced them; the zero
// time: none did.
func (s *Store) Digests() (map[string]time.Time, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "list base images: %w", err)
	}
	r, err := s.rounds()
	if err != nil {
		return nil, err
	}
	digests := map[string]time.Time{}
	for _, e := range entries {
		if !keyedDir.MatchString(e.Name()) {
			continue
		}
		img, err := load(filepath.Join(s.cfg.Dir, e.Name()), &recipe{})
		if errors.Is(err, os.ErrNotExist) { // it is being removed
			continue
		}
		if err != nil {
			return nil, err
		}
		// Two folders may have the same image: it is replaced if both are.
		at := r.Replaced[e.Name()]
		if other, ok := digests[img.Digest]; ok && (other.IsZero() || at.IsZero()) {
			at = time.Time{}
		}
		digests[img.Digest] = at
	}
	return digests, nil
}
