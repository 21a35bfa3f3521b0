package lsvd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"miren.dev/runtime/lsvd"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
)

const (
	killBlocks = 512
	childEnv   = "LSVD_TEST_CHILD" // directory; makes TestMain the writer
	roundEnv   = "LSVD_TEST_ROUND"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := writeForever(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func openAt(ctx context.Context, dir string) (*lsvd.Device, *lsvd.DiskCache, error) {
	local, err := dirstore.Open(filepath.Join(dir, "store"))
	if err != nil {
		return nil, nil, err
	}
	st := &storesim.Fault{Store: local} // as if it were remote, so that the disk cache is used
	files, err := vfs.OpenDir(filepath.Join(dir, "cache"))
	if err != nil {
		return nil, nil, err
	}
	cache, err := lsvd.OpenDiskCache(files, killBlocks*lsvd.BlockSize/2, nil)
	if err != nil {
		return nil, nil, err
	}
	fs, err := vfs.OpenDir(filepath.Join(dir, "log"))
	if err != nil {
		return nil, nil, err
	}
	id := lsvd.ID{1}
	lsvd.Create(ctx, st, id, killBlocks*lsvd.BlockSize, nil) // exists after the first time
	d, _, err := lsvd.Open(ctx, st, fs, id, lsvd.Options{LogFile: 1 << 20, CutBytes: 256 << 10, MaxUnsent: 4 << 20, Checkpoint: 2, GCRatio: 1.1, CacheBytes: 300 << 10, DiskCache: cache,
		LogSpace: lsvd.NewLogSpace(4 << 20)})
	return d, cache, err
}

// stamped is the content of a block written in a round as its n-th write.
func stamped(lba, round, n int) []byte {
	b := make([]byte, lsvd.BlockSize)
	for i := 0; i < len(b); i += 16 {
		binary.LittleEndian.PutUint32(b[i:], uint32(lba))
		binary.LittleEndian.PutUint32(b[i+4:], uint32(round))
		binary.LittleEndian.PutUint32(b[i+8:], uint32(n))
	}
	return b
}

// writeForever is the process to be killed: it prints each write before and
// after it is acknowledged.
func writeForever(dir string) error {
	ctx := context.Background()
	d, _, err := openAt(ctx, dir)
	if err != nil {
		return err
	}
	var round int
	fmt.Sscan(os.Getenv(roundEnv), &round)
	rng := rand.New(rand.NewPCG(uint64(round), 11))
	for n := 1; ; n++ {
		lba := rng.IntN(killBlocks)
		fmt.Printf("begin %d %d\n", lba, n)
		if err := d.WriteAt(ctx, stamped(lba, round, n), int64(lba)*lsvd.BlockSize, 0); err != nil {
			return err
		}
		fmt.Printf("acked %d %d\n", lba, n)
	}
}

// TestKilledProcessKeepsAcknowledgedWrites kills a writing process again and again, at any moment, and finds
// every acknowledged write.
func TestKilledProcessKeepsAcknowledgedWrites(t *testing.T) {
	dir := t.TempDir()
	model := make([][]byte, killBlocks)
	for i := range model {
		model[i] = make([]byte, lsvd.BlockSize)
	}
	hits := int64(0)
	for round := 1; round <= 5; round++ {
		rng := rand.New(rand.NewPCG(uint64(round), 12))
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir, fmt.Sprintf("%s=%d", roundEnv, round))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		limit := 1 + rng.IntN(1500)
		pending, pendingLBA := []byte(nil), -1
		lines := bufio.NewScanner(out)
		for count := 0; lines.Scan(); {
			var what string
			var lba, n int
			if k, _ := fmt.Sscan(lines.Text(), &what, &lba, &n); k != 3 {
				break // cut off by the kill
			}
			if what == "begin" {
				pending, pendingLBA = stamped(lba, round, n), lba
				continue
			}
			model[lba], pending, pendingLBA = pending, nil, -1
			if count++; count == limit {
				cmd.Process.Kill() // and read what it wrote until it died
			}
		}
		cmd.Wait()
		if stderr.Len() > 0 {
			t.Fatalf("round %d: %s", round, stderr.String())
		}
		d, cache, err := openAt(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, lsvd.BlockSize)
		for lba := range model {
			if err := d.ReadAt(t.Context(), got, int64(lba)*lsvd.BlockSize); err != nil {
				t.Fatal(err)
			}
			switch {
			case bytes.Equal(got, model[lba]):
			case lba == pendingLBA && bytes.Equal(got, pending):
				model[lba] = pending // logged, not yet acknowledged
			default:
				t.Fatalf("round %d: block %d is %x, want %x", round, lba, got[:16], model[lba][:16])
			}
		}
		s := cache.Stats()
		hits += s.Hits
		if s.Failures > 0 {
			t.Errorf("round %d: %+v", round, s)
		}
		if round%3 == 0 {
			if err := d.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else { // leave unsent data for the next round to recover
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			d.Close(ctx)
		}
		cache.Close()
	}
	if hits == 0 {
		t.Error("the disk cache was of no use")
	}
}
