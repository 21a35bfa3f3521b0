package readcache

import (
	"testing"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store/dir"
)

// TestFramesUseSpaceOfIndexes: frames have the room that indexes do not need, and give it back,
// within the limit.
func TestFramesUseSpaceOfIndexes(t *testing.T) {
	const limit = 16 << 20
	st, err := dir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := New(st, Config{Bytes: limit})
	defer c.Close()
	bytes := func() int64 {
		s := c.Figures()
		if s.Bytes > limit {
			t.Fatalf("%d bytes in a cache of %d", s.Bytes, limit)
		}
		return s.Bytes
	}
	fill := func() {
		for i := range uint64(1000) {
			f := newFrame(segment.FrameSize)
			c.put(frameKey{1, uint32(i)}, f, demand)
			f.release()
		}
	}
	fill()
	if n := bytes(); n < limit-limit/32 {
		t.Errorf("%d bytes of frames alone in a cache of %d", n, limit)
	}
	var nums []uint64
	for num := uint64(1); c.sources.bytes() < limit/5; num++ {
		c.keepIndex(&manifest.Segment{Ref: name.Ref{Num: num}, Num: num}, &segment.Index{Blocks: 4096})
		nums = append(nums, num)
		bytes()
	}
	fill()
	if n := bytes() - c.sources.bytes(); n < limit*3/4-limit/32 {
		t.Errorf("%d bytes of frames beside indexes in a cache of %d", n, limit)
	}
	c.Drop(append(nums, 1<<40)) // which is not there
	if n := c.sources.bytes(); n != 0 {
		t.Errorf("%d bytes of indexes are left", n)
	}
	fill()
	if n := bytes(); n < limit-limit/32 {
		t.Errorf("%d bytes of frames alone again in a cache of %d", n, limit)
	}
}
