package memlimit

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestOffHeapMemoryLowersLimit(t *testing.T) {
	was := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(was); state.limit = math.MaxInt64 })
	AddOffHeap(64 << 20)
	if got := debug.SetMemoryLimit(-1); got != was {
		t.Fatalf("without a limit the collector's is %d", got)
	}
	Set(1 << 30)
	for _, c := range []struct{ more, want int64 }{
		{0, 1<<30 - 64<<20},
		{step - 1, 1<<30 - 64<<20}, // not worth it
		{1, 1<<30 - 64<<20 - step},
		{-2 * step, 1<<30 - 64<<20 + step},
		{2 << 30, 256 << 20},
		{-2<<30 + step - 64<<20, 1 << 30},
	} {
		AddOffHeap(c.more)
		if got := debug.SetMemoryLimit(-1); got != c.want {
			t.Errorf("after %d: %d, want %d", c.more, got, c.want)
		}
	}
}
