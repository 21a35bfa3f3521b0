package server

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/pkg/errs"
)

type refreshFixture struct {
	*refresher
	dir   string // of the images
	log   bytes.Buffer
	calls int
	err   error // of renew
}

func newRefreshFixture(t *testing.T, every time.Duration) *refreshFixture {
	f := &refreshFixture{dir: t.TempDir()}
	f.refresher = &refresher{
		bases: baseimage.New(baseimage.Config{Dir: f.dir}), schedule: baseimage.Schedule{Every: every}, renewed: filepath.Join(t.TempDir(), "rounds"), look: time.Minute,
		logger: slog.New(slog.NewTextHandler(&f.log, nil)),
		renew: func(context.Context) ([]string, error) {
			f.calls++
			return []string{"python"}, f.err
		},
	}
	return f
}

func (f *refreshFixture) write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, file), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRefreshAtIntervals: the server refreshes when it is due, and says so.
func TestRefreshAtIntervals(t *testing.T) {
	f := newRefreshFixture(t, 24*time.Hour)
	if s := f.status(); s == nil || s.StartedAt != nil || s.NextAt == nil || s.Running {
		t.Errorf("before the first: %+v", s)
	}
	f.once(t.Context())
	s := f.status()
	if s.SucceededAt == nil || s.Error != "" || s.Failures != nil || s.NextAt == nil || s.NextAt.Sub(*s.StartedAt) < 24*time.Hour {
		t.Fatalf("after it: %+v", s)
	}
	if c := checkRefresh(s); c.Level != server.CheckLevelOk || !strings.Contains(c.Found, "refreshed at ") || !strings.Contains(c.Found, "next at ") {
		t.Errorf("%+v", c)
	}
	f.once(t.Context())
	if again := f.status(); !again.StartedAt.Equal(*s.StartedAt) {
		t.Error("it refreshed although none was due")
	}

	// A failure says what to do, and it is tried again before the interval has passed.
	f.write(t, "refresh.json", `{"started_at": "2020-01-01T00:00:00Z", "ended_at": "2020-01-01T00:01:00Z"}`)
	f.write(t, "rounds.json", "{")
	f.once(t.Context())
	s = f.status()
	if s.Error == "" || !strings.Contains(s.Advice, "remove the file") || s.Failures == nil || *s.Failures != 1 || s.NextAt.Sub(*s.EndedAt) > time.Hour {
		t.Errorf("after a failure: %+v", s)
	}
	if c := checkRefresh(s); c.Level != server.CheckLevelWarn || c.Advice != s.Advice {
		t.Errorf("%+v", c)
	}
	if log := f.log.String(); !strings.Contains(log, "base images were not refreshed") || !strings.Contains(log, "remove the file") {
		t.Error(log)
	}
	if s := newRefreshFixture(t, 0).status(); s != nil {
		t.Errorf("a server that never refreshes says %+v", s)
	}
}

// TestRefreshOfOthers: whichever process made the images again, the templates follow once. A server that dies, or fails,
// before all have done so, does it again.
func TestRefreshOfOthers(t *testing.T) {
	f := newRefreshFixture(t, 0)
	renews := func(what string, want int) {
		t.Helper()
		f.calls = 0
		f.once(t.Context())
		if f.calls != want {
			t.Errorf("%s: %d renewals, want %d", what, f.calls, want)
		}
	}
	renews("no image was made again", 0)
	f.write(t, "rounds.json", `{"round": {"bookworm": 1}}`)
	renews("a command made them again", 1)
	renews("nothing has happened since", 0)
	f.write(t, "rounds.json", `{"round": {"bookworm": 1}, "replaced": {"x-1-0123456789abcdef": "2999-01-01T00:00:00Z"}}`)
	renews("the round is the same", 0)

	f.write(t, "rounds.json", `{"round": {"bookworm": 2}}`)
	ctx, cancel := context.WithCancel(t.Context())
	whole := f.renew
	f.renew = func(ctx context.Context) ([]string, error) {
		cancel() // the server ends in the middle
		return nil, ctx.Err()
	}
	f.once(ctx)
	f.renew = whole
	renews("the server before ended in the middle", 1)

	f.write(t, "rounds.json", `{"round": {"bookworm": 3}}`)
	f.err = errs.New(errs.Unavailable, "no packages").WithHint("look at the network")
	renews("it fails", 1)
	renews("right after a failure", 0)
	if log := f.log.String(); !strings.Contains(log, "look at the network") {
		t.Error(log)
	}
	f.retry, f.err = time.Time{}, nil
	renews("later", 1)
	renews("after that", 0)
}
