package instance

import (
	"context"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// TestUseAndRetire: an installation in use does not retire, and one that retires
// is used again only after its release.
func TestUseAndRetire(t *testing.T) {
	in := open(t, t.TempDir(), t.TempDir())
	use := func(ctx context.Context) func() {
		t.Helper()
		release, err := Use(ctx, in.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	retire := func(want bool) func() {
		t.Helper()
		release, free, err := in.Retire()
		if err != nil || free != want {
			t.Fatalf("free %v, %v; want %v", free, err, want)
		}
		return release
	}
	first, second := use(t.Context()), use(t.Context())
	retire(false)()
	first()
	retire(false)()
	second()
	retired := retire(true)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Use(ctx, in.StateDir); !errs.Is(err, errs.Canceled) {
		t.Errorf("while it retires: %v", err)
	}
	used := make(chan func())
	go func() {
		release, err := Use(t.Context(), in.StateDir)
		if err != nil {
			t.Error(err)
		}
		used <- release
	}()
	retired()
	wait.Receive(t, "the installation is used again", used)()
}
