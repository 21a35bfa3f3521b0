package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Goals of agents' sandboxes: milliseconds, or ratios to bare runsc.
const (
	claimGoal        = 2
	claimExecGoalP50 = 8
	claimExecGoalP99 = 30
	restoreGoal      = 1.2
	pauseGoal        = 50
	wakeGoalP50      = 100
	wakeGoalP99      = 250
	forksGoal        = 250
	burstGoal        = 1000
	burstColdGoal    = 1.3
	idleGoalMiB      = 35
	copyGoal         = 0.5
	neighbourGoal    = 2
)

// benchAgents measures what agents ask of sandboxes, at the driver and through a server.
func benchAgents(ctx context.Context, b *bench) (err error) {
	d, err := newDriverInstall(ctx, b, "agents")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	alone, err := newBare(ctx, b, "agents", sandboxImage)
	if err != nil {
		return err
	}
	defer alone.close()
	for _, part := range []func(context.Context, *bench, *driverInstall, *bare) error{benchStatic, benchSnapshots, benchCopy, benchNeighbour, benchBurst} {
		if err := part(ctx, b, d, alone); err != nil {
			return err
		}
	}
	if err := benchPrograms(ctx, b, d); err != nil {
		return err
	}
	if err := benchClaims(ctx, b); err != nil {
		return err
	}
	return benchInterpreter(ctx, b)
}

// benchStatic executes a program of one system call, so that the start of a process is what is measured.
func benchStatic(ctx context.Context, b *bench, d *driverInstall, _ *bare) error {
	s := d.spec("static")
	if _, err := d.Ensure(ctx, s); err != nil {
		return err
	}
	w, err := d.Files(s.ID, sandboxfs.View{User: "root"}).Write(ctx, staticPath, sandboxfs.WriteOptions{Perm: 0o755})
	if err != nil {
		return err
	}
	if _, err = w.Write(staticProgram()); err == nil {
		_, err = w.Commit(ctx)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	n := 500
	if b.opt.quick {
		n = 100
	}
	took, err := repeat(ctx, n, func() error { return runDriver(ctx, d, s.ID, staticPath) })
	if err != nil {
		return err
	}
	b.report.figure("exec of a static program through the driver, p50", "ms", took.ms(50), staticGoalP50)
	b.report.figure("exec of a static program through the driver, p99", "ms", took.ms(99), execGoalP99)
	return d.Delete(ctx, s.ID)
}

// runDriver executes a program without input and waits for its end.
func runDriver(ctx context.Context, d execution.Driver, sid string, command ...string) error {
	p, err := d.Exec(ctx, sid, execution.ExecSpec{Command: command, NoInput: true})
	if err != nil {
		return err
	}
	defer p.Close()
	code, err := p.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("%v: exit code %d", command, code)
	}
	return err
}

// benchSnapshots pauses, resumes and forks a sandbox, beside checkpoint and restore of runsc alone.
func benchSnapshots(ctx context.Context, b *bench, d *driverInstall, bare *bare) error {
	s := d.spec("paused", "sleep", "1000")
	if _, err := d.Ensure(ctx, s); err != nil {
		return err
	}
	id := bare.next()
	if err := bare.start(ctx, id); err != nil {
		return err
	}
	var pause, resume, forks pair
	var wake latencies
	for k := range b.rounds(10) {
		snap := fmt.Sprint("snap-", k)
		var theirs, ours [3]time.Duration
		next := bare.next()
		timed := func(d *time.Duration, f func() error) error {
			began := time.Now()
			err := f()
			*d = time.Since(began)
			return err
		}
		err := errors.Join(
			timed(&theirs[0], func() error { return bare.checkpoint(ctx, id, snap) }),
			timed(&ours[0], func() error {
				_, err := d.Snapshot(ctx, s.ID, snap, execution.SnapshotOptions{})
				return err
			}),
			bare.remove(ctx, id),
			timed(&theirs[1], func() error { return bare.restore(ctx, next, snap) }),
		)
		if err != nil {
			return err
		}
		id, s.Restore = next, snap
		began := time.Now()
		err = timed(&ours[1], func() error { _, err := d.Ensure(ctx, s); return err })
		if err == nil {
			err = runDriver(ctx, d, s.ID, trueCommand...)
		}
		wake = append(wake, time.Since(began))
		if err != nil {
			return err
		}
		var theirForks, ourForks []string
		for range 5 {
			theirForks, ourForks = append(theirForks, bare.next()), append(ourForks, fmt.Sprintf("fork-%d-%d", k, len(ourForks)))
		}
		err = errors.Join(
			timed(&theirs[2], func() error { return side(theirForks, func(id string) error { return bare.restore(ctx, id, snap) }) }),
			side(theirForks, func(id string) error { return bare.remove(ctx, id) }),
			timed(&ours[2], func() error {
				return side(ourForks, func(id string) error {
					fork := s
					fork.ID = id
					_, err := d.Ensure(ctx, fork)
					return err
				})
			}),
			side(ourForks, func(id string) error { return d.Delete(ctx, id) }),
			d.DeleteSnapshot(ctx, snap),
		)
		if err != nil {
			return err
		}
		for i, p := range []*pair{&pause, &resume, &forks} {
			p.add(ours[i].Seconds()*1000, theirs[i].Seconds()*1000)
		}
	}
	b.report.compare("pause", "ms", "runsc checkpoint", &pause, 0, restoreGoal)
	b.report.figure("pause, p50", "ms", median(pause.ours), pauseGoal)
	b.report.compare("resume", "ms", "runsc restore", &resume, 0, restoreGoal)
	b.report.figure("wake: resume to first exec, p50", "ms", wake.ms(50), wakeGoalP50)
	b.report.figure("wake: resume to first exec, p99", "ms", wake.ms(99), wakeGoalP99)
	b.report.compare("five forks at once", "ms", "five runsc restores", &forks, 0, restoreGoal)
	b.report.figure("five forks at once, p50", "ms", median(forks.ours), forksGoal)
	return errors.Join(bare.remove(ctx, id), d.Delete(ctx, s.ID))
}

// side calls f for all ids side by side.
func side(ids []string, f func(id string) error) error {
	var all sync.WaitGroup
	failed := make([]error, len(ids))
	for i, id := range ids {
		all.Go(func() { failed[i] = f(id) })
	}
	all.Wait()
	return errors.Join(failed...)
}

const copyBytes = 64 << 20

// benchCopy moves a file into a sandbox and out of it, beside cp on the same disk.
func benchCopy(ctx context.Context, b *bench, d *driverInstall, _ *bare) error {
	s := d.spec("files")
	if _, err := d.Ensure(ctx, s); err != nil {
		return err
	}
	files := d.Files(s.ID, sandboxfs.View{User: "root"})
	from, to := b.scratch.path("copy", "from"), b.scratch.path("copy", "to")
	if err := writeNoise(from, copyBytes); err != nil {
		return err
	}
	rate := func(began time.Time) figures { return figures{copyBytes / (1 << 20) / time.Since(began).Seconds()} }
	cp := func() (figures, error) {
		began := time.Now()
		err := exec.CommandContext(ctx, "cp", from, to).Run()
		return rate(began), err
	}
	var up, down pair
	err := b.turns(ctx, 10, func(side int) (figures, error) {
		if side == 1 {
			return cp()
		}
		began := time.Now()
		err := copyIn(ctx, files, from, "/root/copy")
		return rate(began), err
	}, &up)
	if err != nil {
		return err
	}
	err = b.turns(ctx, 10, func(side int) (figures, error) {
		if side == 1 {
			return cp()
		}
		f, err := os.Create(to)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		began := time.Now()
		r, err := files.Read(ctx, "/root/copy", 0, 0)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(f, r)
		return rate(began), errors.Join(err, r.Close())
	}, &down)
	if err != nil {
		return err
	}
	b.report.compare("file of 64 MiB into a sandbox", "MiB/s", "cp", &up, copyGoal, 0)
	b.report.compare("file of 64 MiB out of a sandbox", "MiB/s", "cp", &down, copyGoal, 0)
	return d.Delete(ctx, s.ID)
}

func writeNoise(path string, n int64) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	random, err := os.Open("/dev/urandom")
	if err != nil {
		return err
	}
	defer random.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, random, n)
	return errors.Join(err, f.Close())
}

// benchNeighbour executes in a sandbox while another uses all the processor time that it may.
func benchNeighbour(ctx context.Context, b *bench, d *driverInstall, _ *bare) error {
	calm, busy := d.spec("calm"), d.spec("busy", "sh", "-c", "while :; do :; done & while :; do :; done")
	if _, err := d.Ensure(ctx, calm); err != nil {
		return err
	}
	n := 200
	if b.opt.quick {
		n = 50
	}
	measure := func() (latencies, error) {
		return repeat(ctx, n, func() error { return runDriver(ctx, d, calm.ID, trueCommand...) })
	}
	var p pair
	for range b.rounds(3) {
		quiet, err := measure()
		if err != nil {
			return err
		}
		if _, err := d.Ensure(ctx, busy); err != nil {
			return err
		}
		beside, err := measure()
		if err = errors.Join(err, d.Delete(ctx, busy.ID)); err != nil {
			return err
		}
		p.add(beside.ms(99), quiet.ms(99))
	}
	b.report.compare("exec beside a busy sandbox, p99", "ms", "on a quiet machine", &p, 0, neighbourGoal)
	return d.Delete(ctx, calm.ID)
}

// benchBurst makes a hundred sandboxes at once, cold and from warm ones, and measures the memory of the warm ones.
func benchBurst(ctx context.Context, b *bench, d *driverInstall, bare *bare) error {
	n := 100
	if b.opt.quick {
		n = 10
	}
	var cold pair
	var ids, theirs []string
	for i := range n {
		ids, theirs = append(ids, fmt.Sprint("cold-", i)), append(theirs, bare.next())
	}
	began := time.Now()
	if err := side(theirs, func(id string) error { _, err := bare.runAs(ctx, id); return err }); err != nil {
		return err
	}
	peer := time.Since(began)
	began = time.Now()
	err := side(ids, func(id string) error {
		if _, err := d.Ensure(ctx, d.spec(id)); err != nil {
			return err
		}
		return runDriver(ctx, d, id, trueCommand...)
	})
	if err != nil {
		return err
	}
	cold.add(time.Since(began).Seconds()*1000, peer.Seconds()*1000)
	b.report.compare(fmt.Sprintf("%d cold at once, to first exec", n), "ms", fmt.Sprintf("%d runsc run", n), &cold, 0, burstColdGoal)

	// They are idle now.
	for _, id := range ids[n/2:] {
		if err := d.Delete(ctx, id); err != nil {
			return err
		}
	}
	b.report.figure(fmt.Sprintf("memory of each of %d idle sandboxes", n/2), "MiB", float64(sandboxMemory(d.in.RunDir))/float64(n/2)/(1<<20), idleGoalMiB)
	for _, id := range ids[:n/2] {
		if err := d.Delete(ctx, id); err != nil {
			return err
		}
	}
	warm := func(id string) error { // as a warm pool makes them
		s := d.spec(id)
		s.Warm = true
		_, err := d.Ensure(ctx, s)
		return err
	}
	if err := side(ids, warm); err != nil {
		return err
	}
	var claims, firsts latencies
	claim := func(id string) error {
		return d.Configure(ctx, id, execution.Identity{Claim: "bench", Hostname: id, Env: []string{"A=b"}})
	}
	for _, id := range ids[:n/5] { // one after the other
		began := time.Now()
		if err := claim(id); err != nil {
			return err
		}
		claims = append(claims, time.Since(began))
		if err := runDriver(ctx, d, id, trueCommand...); err != nil {
			return err
		}
		firsts = append(firsts, time.Since(began))
		if err := d.Delete(ctx, id); err != nil {
			return err
		}
		if err := warm(id); err != nil {
			return err
		}
	}
	b.report.figure("claim at the node, p50", "ms", claims.ms(50), claimGoal)
	b.report.figure("claim to first exec at the node, p50", "ms", firsts.ms(50), claimExecGoalP50)
	b.report.figure("claim to first exec at the node, p99", "ms", firsts.ms(99), claimExecGoalP99)
	began = time.Now()
	err = side(ids, func(id string) error {
		if err := claim(id); err != nil {
			return err
		}
		return runDriver(ctx, d, id, trueCommand...)
	})
	if err != nil {
		return err
	}
	b.report.figure(fmt.Sprintf("%d claims at once, to first exec", n), "ms", time.Since(began).Seconds()*1000, burstGoal)
	for _, id := range ids {
		if err := d.Delete(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
