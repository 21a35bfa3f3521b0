package host_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

// TestTakeoverRefusesDamage: a machine that takes over a volume does not go back to before
// damage of the chain, or open it without objects that the manifest names, unless it is
// told to. A segment that was on its way when the other machine ended is no damage. While the
// takeover is refused, the other machine, which was only unreachable, goes on with its disk.
func TestTakeoverRefusesDamage(t *testing.T) {
	const segments = 8
	damage := func(path string) error { return os.Truncate(path, 100) }
	for _, x := range []struct {
		name    string
		at      int // segment
		do      func(path string) error
		named   bool // by the manifest
		refused bool
		want    int // segments that the disk has then
	}{
		{"no damage", 0, func(string) error { return nil }, false, false, segments},
		{"on its way", segments - 2, os.Remove, false, false, segments - 2},
		{"missing", 2, os.Remove, false, true, 2},
		{"damaged", 2, damage, false, true, 2},
		{"damaged last", segments - 1, damage, false, true, segments - 1},
		{"missing of the manifest", 2, os.Remove, true, true, -1},
	} {
		t.Run(x.name, func(t *testing.T) {
			ctx, dir := t.Context(), t.TempDir()
			st, url, err := host.OpenStore(ctx, filepath.Join(dir, "store"))
			if err != nil {
				t.Fatal(err)
			}
			id, err := catalog.Create(ctx, st, "x", 1<<20, nil)
			if err != nil {
				t.Fatal(err)
			}
			first, err := host.Open(filepath.Join(dir, "first"))
			if err != nil {
				t.Fatal(err)
			}
			// A clock that stands still: an idle disk would have the manifest name the segments.
			spec := host.Spec{Store: url, Volume: "x", Options: lsvd.Options{CutAge: time.Hour, Checkpoint: 1000, LogFile: 64 << 10,
				Now: func() time.Time { return time.Time{}.Add(time.Minute) }}}
			d, err := first.Open(ctx, st, spec)
			if err != nil {
				t.Fatal(err)
			}
			block := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, lsvd.BlockSize) }
			for i := range segments {
				if err = d.WriteAt(ctx, block(i), int64(i)*lsvd.BlockSize, 0); err == nil {
					err = d.Drain(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if x.named {
				if err := d.Resize(ctx, 2<<20); err != nil { // with a checkpoint
					t.Fatal(err)
				}
			}
			var objects []string
			err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() && strings.Contains(path, "/objects/"+id.String()+"/data/") {
					objects = append(objects, path)
				}
				return err
			})
			if err != nil || len(objects) != segments {
				t.Fatalf("objects %q, %v", objects, err)
			}
			slices.Sort(objects)
			if err := x.do(objects[x.at]); err != nil {
				t.Fatal(err)
			}
			ended, end := context.WithCancel(ctx)
			end()
			owner := d
			second, err := host.Open(filepath.Join(dir, "second"))
			if err != nil {
				t.Fatal(err)
			}
			claimed, err := catalog.Find(ctx, st, "x")
			if err != nil {
				t.Fatal(err)
			}
			spec.TakeOver = true
			d, err = second.Open(ctx, st, spec)
			if x.refused {
				if err == nil {
					d.Device.Close(ended)
				}
				if v, err := catalog.Find(ctx, st, "x"); err != nil || v.Epoch != claimed.Epoch {
					t.Errorf("the refusal has claimed the volume: epoch %d after %d, %v", v.Epoch, claimed.Epoch, err)
				}
				if x.named {
					if err := owner.Resize(ctx, 3<<20); err != nil {
						t.Errorf("the owner writes the manifest after the refusal: %v", err)
					}
				}
				owner.Device.Close(ended)
				if !errs.Is(err, errs.Corrupt) || errs.Detail(err, "reason") != "damaged" ||
					!strings.Contains(err.Error(), filepath.Base(objects[x.at])) || !strings.Contains(errs.HintOf(err), "--accept-loss") {
					t.Fatalf("taken over: %v, reason %q, hint %q", err, errs.Detail(err, "reason"), errs.HintOf(err))
				}
				spec.AcceptLoss = true
				d, err = second.Open(ctx, st, spec)
			} else {
				owner.Device.Close(ended)
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range segments {
				want := block(i)
				if x.want >= 0 && i >= x.want {
					want = make([]byte, lsvd.BlockSize)
				}
				got := make([]byte, lsvd.BlockSize)
				err := d.ReadAt(ctx, got, int64(i)*lsvd.BlockSize)
				if lost := x.named && i == x.at; lost != (err != nil) || !lost && !bytes.Equal(got, want) {
					t.Errorf("block %d: %d, %v", i, got[0], err)
				}
			}
			if err := d.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
