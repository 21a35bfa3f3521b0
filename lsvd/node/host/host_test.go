package host_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// crash opens a disk, writes, and leaves it as a crash does: not closed, its
// log as it is, its lock gone.
func crash(t *testing.T, s *host.State, st store.Store, spec host.Spec) {
	t.Helper()
	d, err := s.Open(t.Context(), st, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.WriteAt(t.Context(), bytes.Repeat([]byte{7}, 4096), 0, lsvd.FUA); err != nil {
		t.Fatal(err)
	}
	log := s.LogDir(d.Volume.ID)
	kept := t.TempDir()
	if err := os.CopyFS(kept, os.DirFS(log)); err != nil {
		t.Fatal(err)
	}
	stc, cancel := context.WithCancel(t.Context())
	cancel()
	_ = d.Device.Close(stc) // sends nothing: the store is out of reach for it
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(log, os.DirFS(kept)); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesToLoseData(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	st, url, err := host.OpenStore(ctx, filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := host.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	id, err := catalog.Create(ctx, st, "x", 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := host.Spec{Store: url, Volume: "x"}
	crash(t, s, st, spec)
	refused := func(s *host.State, spec host.Spec, class errs.Class, reason string, words ...string) {
		t.Helper()
		d, err := s.Open(ctx, st, spec)
		if err == nil {
			d.Device.Close(ctx)
		}
		if !errs.Is(err, class) || errs.Detail(err, "reason") != reason {
			t.Errorf("reason %q: %v", errs.Detail(err, "reason"), err)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error()+"\n"+errs.HintOf(err), w) {
				t.Errorf("%q is missing in %v, hint %s", w, err, errs.HintOf(err))
			}
		}
	}
	other, err := host.Open(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	refused(other, spec, errs.FailedPrecondition, "open_elsewhere", "by process", "--take-over")
	// The log is lost here: --take-over is not the word for it.
	log := s.LogDir(id)
	if err := os.Rename(log, log+".lost"); err != nil {
		t.Fatal(err)
	}
	refused(s, spec, errs.FailedPrecondition, "lost_log", log, "--accept-loss")
	taking := spec
	taking.TakeOver = true
	refused(s, taking, errs.FailedPrecondition, "lost_log")
	// It is found again, and nothing was lost.
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(log+".lost", log); err != nil {
		t.Fatal(err)
	}
	keyed := spec
	keyed.Key = make([]byte, 32)
	refused(s, keyed, errs.FailedPrecondition, "", "not encrypted")
	moved := spec
	moved.Store = "file:///elsewhere"
	refused(s, moved, errs.FailedPrecondition, "", "belongs to the store "+url)
	d, err := s.Open(ctx, st, spec)
	if err != nil {
		t.Fatal(err)
	}
	refused(s, spec, errs.Conflict, "in_use", "by process")
	p := make([]byte, 4096)
	if err := d.ReadAt(ctx, p, 0); err != nil || p[0] != 7 {
		t.Errorf("after the crash: %d %v", p[0], err)
	}
	files, err := s.LogFiles(id)
	if err != nil || !slices.ContainsFunc(files, func(f host.LogFile) bool { return f.Valid && f.Volume == id.String() }) {
		t.Errorf("log files: %+v %v", files, err)
	}
	if err := d.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if files, err := s.LogFiles(id); err != nil || len(files) != 0 {
		t.Errorf("after closing clean the log is still there: %+v %v", files, err)
	}
	// And accepted loss.
	crash(t, s, st, spec)
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	losing := spec
	losing.AcceptLoss = true
	if d, err = s.Open(ctx, st, losing); err != nil || !d.Recovery.LostLog {
		t.Fatalf("%+v %v", d, err)
	}
	if err := d.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestKeyFileIsChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	key, err := host.NewKey(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := host.ReadKey(file); err != nil || !bytes.Equal(got, key) {
		t.Errorf("%x %v", got, err)
	}
	if _, err := host.NewKey(file); err == nil {
		t.Error("a key was made over another")
	}
	for _, bad := range []string{"", "short", strings.Repeat("z", 64)} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := host.ReadKey(file); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestStoreURL(t *testing.T) {
	t.Chdir(t.TempDir())
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"./x": "file://" + cwd + "/x", "/a b": "file:///a%20b", "file:///a%20b": "file:///a%20b",
		"s3://b/p?region=r&credentials=c": "s3://b/p?credentials=" + strings.ReplaceAll(cwd, "/", "%2F") + "%2Fc&region=r",
	} {
		if got, err := host.StoreURL(in); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", in, got, err, want)
		}
		if again, err := host.StoreURL(want); err != nil || again != want {
			t.Errorf("%s again: %s %v", want, again, err)
		}
	}
}
