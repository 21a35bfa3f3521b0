package vfssim_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// oldest and newest are the two extreme choices of a power loss.
func oldest(vfssim.Unsynced, int) int     { return 0 }
func newest(_ vfssim.Unsynced, n int) int { return n - 1 }

// outcomes runs the same preparation again and again, loses power, and returns
// what every combination of choices leaves: each as the names with their contents.
func outcomes(t *testing.T, prepare func(s *vfssim.Sim)) []string {
	t.Helper()
	base := vfssim.New()
	prepare(base)
	seen := map[string]bool{}
	var choices []int // of the run, in the order in which they are asked for
	for {
		s, at := base.Clone(), 0
		var most []int
		s.Crash(func(_ vfssim.Unsynced, n int) int {
			if at == len(choices) {
				choices = append(choices, 0)
			}
			most = append(most, n-1)
			at++
			return choices[at-1]
		})
		text := ""
		files := s.Files("")
		for _, name := range slices.Sorted(maps.Keys(files)) {
			text += fmt.Sprintf("%s=%s ", name, bytes.TrimRight(files[name], "\x00"))
		}
		seen[text] = true
		choices = choices[:at]
		i := at - 1
		for ; i >= 0 && choices[i] == most[i]; i-- {
		}
		if i < 0 {
			return slices.Sorted(maps.Keys(seen))
		}
		choices[i]++
		choices = choices[:i+1]
	}
}

// put writes a file.
func put(t *testing.T, s *vfssim.Sim, name, content string) vfs.File {
	t.Helper()
	f, err := s.Open(name, true)
	if err == nil {
		_, err = f.WriteAt([]byte(content), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestSimLosesWhatLinuxMayLose has every outcome of a power loss that Linux
// allows after a few calls, and no other.
func TestSimLosesWhatLinuxMayLose(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(s *vfssim.Sim)
		want    []string
	}{
		"a name needs its directory's sync": {func(s *vfssim.Sim) {
			must(t, put(t, s, "a", "x").Sync())
		}, []string{"", "a=x "}},
		"data need the file's sync": {func(s *vfssim.Sim) {
			put(t, s, "a", "x")
			must(t, s.SyncDir())
		}, []string{"a= ", "a=x "}},
		"both": {func(s *vfssim.Sim) {
			must(t, put(t, s, "a", "x").Sync(), s.SyncDir())
		}, []string{"a=x "}},
		"a removal needs it too": {func(s *vfssim.Sim) {
			must(t, put(t, s, "a", "x").Sync(), s.SyncDir(), s.Remove("a"))
		}, []string{"", "a=x "}},
		"a name made again may be the old file": {func(s *vfssim.Sim) {
			must(t, put(t, s, "a", "x").Sync(), s.SyncDir(), s.Remove("a"))
			must(t, put(t, s, "a", "y").Sync())
		}, []string{"", "a=x ", "a=y "}},
		"a rename is two names": {func(s *vfssim.Sim) {
			must(t, put(t, s, "a", "x").Sync(), put(t, s, "b", "y").Sync(), s.SyncDir(), s.Rename("a", "b"))
		}, []string{"a=x b=x ", "a=x b=y ", "b=x ", "b=y "}},
		"a rename that is synced": {func(s *vfssim.Sim) {
			must(t, put(t, s, "a", "x").Sync(), put(t, s, "b", "y").Sync(), s.SyncDir(), s.Rename("a", "b"), s.SyncDir())
		}, []string{"b=x "}},
		"a link": {func(s *vfssim.Sim) {
			must(t, put(t, s, "a", "x").Sync(), s.SyncDir(), s.Link("a", "b"))
		}, []string{"a=x ", "a=x b=x "}},
		"a directory's name is in its parent": {func(s *vfssim.Sim) {
			must(t, s.Mkdir("d"), put(t, s, "d/a", "x").Sync(), s.SyncDirAt("d"))
		}, []string{"", "d/a=x "}},
		"a directory with its names": {func(s *vfssim.Sim) {
			must(t, s.Mkdir("d"), s.SyncDir(), put(t, s, "d/a", "x").Sync(), s.SyncDirAt("d"))
		}, []string{"d/a=x "}},
		"a directory made again may be the old one": {func(s *vfssim.Sim) {
			must(t, s.Mkdir("d"), s.SyncDir(), put(t, s, "d/a", "x").Sync(), s.SyncDirAt("d"))
			must(t, s.Remove("d/a"), s.Remove("d"), s.Mkdir("d"), put(t, s, "d/b", "y").Sync(), s.SyncDirAt("d"))
		}, []string{"", "d/a=x ", "d/b=y "}},
		"the sync of a file without a name": {func(s *vfssim.Sim) {
			f := put(t, s, "a", "x")
			must(t, f.Sync(), s.SyncDir(), s.Remove("a"))
			_, err := f.WriteAt([]byte("z"), 0)
			must(t, err, f.Sync())
		}, []string{"", "a=z "}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := outcomes(t, c.prepare); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestSimKeepsAnOpenFile: a removed file is read and written by the handle that
// has it, beside a new one of its name.
func TestSimKeepsAnOpenFile(t *testing.T) {
	s := vfssim.New()
	old := put(t, s, "a", "old")
	must(t, old.Sync(), s.SyncDir(), s.Remove("a"))
	put(t, s, "a", "new")
	got := make([]byte, 3)
	if _, err := old.ReadAt(got, 0); err != nil || string(got) != "old" {
		t.Errorf("%q %v", got, err)
	}
	s.Crash(oldest)
	if f := s.Files(""); string(f["a"]) != "old" {
		t.Errorf("%q", f)
	}
}

// TestSimTearsWrites: of a write of several pieces any may survive, and the size
// with the last of them.
func TestSimTearsWrites(t *testing.T) {
	base := vfssim.New()
	f := put(t, base, "a", "")
	must(t, f.Sync(), base.SyncDir())
	f.WriteAt(bytes.Repeat([]byte{1}, 4*512), 0)
	for _, keep := range []int64{0, 2, 3} {
		s := base.Clone()
		s.Crash(func(u vfssim.Unsynced, n int) int {
			if u.Kind == vfssim.Data && u.Piece == keep {
				return n - 1
			}
			return 0
		})
		want := make([]byte, (keep+1)*512)
		copy(want[keep*512:], bytes.Repeat([]byte{1}, 512))
		if got := s.Files("")["a"]; !bytes.Equal(got, want) {
			t.Errorf("of piece %d: %d bytes, want %d, or others", keep, len(got), len(want))
		}
	}
	base.Crash(newest)
	if got := base.Files("")["a"]; !bytes.Equal(got, bytes.Repeat([]byte{1}, 4*512)) {
		t.Error("not all survives where all may")
	}
}

// TestSimFailedSync: a sync that fails returns an error once and drops the dirty pages.
// Reads return them at first. No later sync makes them durable; pages that the program
// writes again become durable.
func TestSimFailedSync(t *testing.T) {
	base := vfssim.New()
	f := put(t, base, "a", "old.")
	must(t, f.Sync(), base.SyncDir())
	f.WriteAt([]byte("new."), 0)
	f.WriteAt([]byte("longer"), 4096)
	broken := errs.New(errs.Unavailable, "broken")
	base.FailSync = func(string) error { return broken }
	if err := f.Sync(); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	base.FailSync = nil
	must(t, f.Sync())
	if got := base.Files("")["a"]; string(got[:4]) != "new." || string(got[4096:]) != "longer" {
		t.Errorf("reads %q", got[:4])
	}
	for name, s := range map[string]*vfssim.Sim{"power loss": base.Clone(), "eviction": base.Clone()} {
		if name == "eviction" {
			s.Evict()
		} else {
			s.Crash(oldest)
		}
		if got := s.Files("")["a"]; len(got) != 4102 || string(got[:4]) != "old." || got[4096] != 0 {
			t.Errorf("after %s: %d bytes, %q", name, len(got), got[:4])
		}
	}
	f.WriteAt([]byte("new!"), 0)
	must(t, f.Sync())
	base.Crash(oldest)
	if got := base.Files("")["a"]; string(got[:4]) != "new!" {
		t.Errorf("written again and synced: %q", got[:4])
	}
}
