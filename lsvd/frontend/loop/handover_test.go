package loop_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/testsupport/attachtest"
)

// TestHandover ends the daemon under a file system that is written to and
// verified, by kill -9 and by SIGTERM in turn. Its users notice nothing.
func TestHandover(t *testing.T) {
	rounds := 20
	if s := os.Getenv(roundsEnv); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		name        string
		mkfs, check []string
		rounds      int
	}{
		{"ext4", []string{"mkfs.ext4", "-q", "-F"}, []string{"e2fsck", "-fn"}, rounds},
		{"xfs", []string{"mkfs.xfs", "-q", "-f"}, []string{"xfs_repair", "-n"}, (rounds + 1) / 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			attachtest.Need(t, x.mkfs[0], x.check[0], "mount")
			dir := t.TempDir()
			name, run := owner(t)
			env := []string{daemonEnv + "=" + dir, ownerEnv + "=" + name, runEnv + "=" + run, holderEnv + "=" + startHolder(t)}
			p := start(t, env...)
			device := p.device
			command(t, x.mkfs[0], append(x.mkfs[1:], device)...)
			mnt := mount(t, device)
			w := write(t, mnt)
			rng := rand.New(rand.NewPCG(uint64(rounds), 1))
			var pauses time.Duration
			for round := range x.rounds {
				w.until(t, 30+rng.Int64N(200)) // operations
				kill := os.Signal(syscall.SIGKILL)
				if round%2 == 1 {
					kill = syscall.SIGTERM
				}
				begin := time.Now()
				p.end(t, kill)
				p = start(t, env...)
				pauses += time.Since(begin)
				if p.device != device {
					t.Fatalf("round %d: the successor has %s, not %s", round, p.device, device)
				}
				if w.failed() {
					t.Fatalf("round %d: %v\n%s", round, kill, p.stderr())
				}
			}
			t.Logf("%d operations, mean pause %v", w.ops(), pauses/time.Duration(x.rounds))
			w.stop()
			unmount(t, mnt, device)
			command(t, x.check[0], append(x.check[1:], device)...)
			command(t, "mount", device, mnt)
			w.verify(t)
			command(t, "umount", mnt)
			p.end(t, syscall.SIGTERM)
		})
	}
}

// TestGivenUp finds that users get errors soon when no successor comes.
func TestGivenUp(t *testing.T) {
	attachtest.Need(t, "mkfs.ext4", "mount")
	dir := t.TempDir()
	name, run := owner(t)
	socket := startHolder(t)
	p := start(t, daemonEnv+"="+dir, ownerEnv+"="+name, runEnv+"="+run, holderEnv+"="+socket)
	command(t, "mkfs.ext4", "-q", "-F", p.device)
	mnt := mount(t, p.device)
	f, err := os.Create(filepath.Join(mnt, "f"))
	if err != nil {
		t.Fatal(err)
	}
	p.end(t, syscall.SIGKILL)
	failed := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(make([]byte, 4096), 0)
		failed <- errors.Join(err, f.Sync(), f.Close())
	}()
	c, err := holder.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var entries []holder.Entry
	for deadline := time.Now().Add(10 * time.Second); ; { // until the holder has noticed
		if entries, err = c.List(t.Context()); err != nil || len(entries) != 1 || time.Now().After(deadline) {
			t.Fatalf("held: %v, %v", entries, err)
		}
		if !entries[0].Owned {
			break
		}
	}
	select {
	case err := <-failed:
		t.Fatalf("a write did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	begin := time.Now()
	if err := c.Drop(t.Context(), entries[0].Name); err != nil { // as the holder does when it has no more patience
		t.Fatal(err)
	}
	if err := <-failed; err == nil || time.Since(begin) > time.Second {
		t.Fatalf("write: %v after %v", err, time.Since(begin))
	}
	command(t, "umount", mnt)
	if waiting := uninterruptible(t); len(waiting) > 0 {
		t.Fatalf("threads wait for the disk: %v", waiting)
	}
}
