package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/pkg/errs"
)

type count struct {
	N int `json:"n"`
}

func options(t *testing.T) Options {
	t.Helper()
	return Options{Kind: "test sink", Name: "one", File: filepath.Join(t.TempDir(), "one.json"), Begins: "anew", Stays: "it stays",
		Logger: slog.New(slog.DiscardHandler), Poll: time.Hour, Retry: time.Millisecond}
}

// TestProgress: a delivery begins where the last one that was recorded came, and a damaged
// record is an error that names its file.
func TestProgress(t *testing.T) {
	o := options(t)
	fresh := func() count { return count{1} }
	p, err := Open(o, fresh)
	if err != nil {
		t.Fatal(err)
	}
	p.Do(func(c *count) { c.N = 7 })
	if err := p.Save(); err != nil {
		t.Fatal(err)
	}
	p.Do(func(c *count) { c.N = 8 }) // not recorded before the process ends
	if p, err = Open(o, fresh); err != nil {
		t.Fatal(err)
	}
	p.Do(func(c *count) {
		if c.N != 7 {
			t.Errorf("%d, want 7", c.N)
		}
	})
	if err := os.WriteFile(o.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o, fresh); !errs.Is(err, errs.Corrupt) || errs.HintOf(err) != "delete "+o.File+": then it begins anew" {
		t.Errorf("%v, %q", err, errs.HintOf(err))
	}
}

// TestRun: rounds follow at once while there is more, and after an error until one succeeds.
func TestRun(t *testing.T) {
	p, err := Open(options(t), func() count { return count{} })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waits []string
	p.Run(ctx, func(context.Context) (bool, error) {
		waits = append(waits, p.Waits())
		switch len(waits) {
		case 2, 3:
			return false, errors.New("away")
		case 5:
			cancel()
		}
		return true, nil
	})
	want := []string{"", "", "away", "away", ""}
	for i, w := range want {
		if len(waits) != len(want) || waits[i] != w {
			t.Fatalf("rounds %q, want %q", waits, want)
		}
	}
}

// TestRetryAfter: a round that the other system wants later waits as long as it says, within bounds, and no shorter
// than without that.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := Open(options(t), func() count { return count{} })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var waits []time.Duration
		last := time.Now()
		answers := []time.Duration{90 * time.Second, 48 * time.Hour, 0}
		p.Run(ctx, func(context.Context) (bool, error) {
			waits, last = append(waits, time.Since(last)), time.Now()
			if len(waits) > len(answers) {
				cancel()
				return false, nil
			}
			return false, fmt.Errorf("round: %w", &Later{errs.New(errs.Unavailable, "busy"), answers[len(waits)-1]})
		})
		if waits[1] != 90*time.Second || waits[2] != MaxRetryAfter || waits[3] <= 0 || waits[3] > time.Second {
			t.Errorf("waits %s", waits[1:])
		}
	})
	if err := error(&Later{errs.New(errs.Unavailable, "busy"), 1}); !errs.Is(err, errs.Unavailable) || err.Error() != "busy" {
		t.Errorf("%v", err)
	}
}

func TestOutcome(t *testing.T) {
	for _, tc := range []struct {
		err           error
		sent, refused int64
		ok            bool
	}{
		{nil, 10, 0, true},
		{&Refused{N: 3}, 7, 3, true},
		{&Refused{N: 30}, 0, 10, true},
		{errs.New(errs.InvalidArgument, "no"), 0, 10, true},
		{errs.New(errs.Unavailable, "later"), 0, 0, false},
	} {
		if sent, refused, ok := Outcome(tc.err, 10); sent != tc.sent || refused != tc.refused || ok != tc.ok {
			t.Errorf("%v: %d sent, %d refused, %v", tc.err, sent, refused, ok)
		}
	}
}
