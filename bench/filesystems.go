package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	fsSize  = 3 << 30
	pgScale = 20 // some 300 MiB
)

// benchFilesystems has a database and a build work on file systems of an attached disk and of a loop device, and an
// attached disk send what it holds to an S3 server.
func benchFilesystems(ctx context.Context, b *bench) error {
	if err := needPrograms("mkfs.ext4", "mkfs.xfs", "losetup", "setpriv", "go"); err != nil {
		return err
	}
	d, err := newDisks(b, "filesystems")
	if err != nil {
		return err
	}
	group, err := b.scratch.memGroup("ours", diskMemory)
	if err != nil {
		return err
	}
	for _, fs := range []string{"ext4", "xfs"} {
		if err := d.filesystem(ctx, fs, group); err != nil {
			return fmt.Errorf("%s: %w", fs, err)
		}
	}
	return d.overS3(ctx, group)
}

// filesystem measures one kind of file system.
func (d *disks) filesystem(ctx context.Context, fs, group string) (err error) {
	ours, err := d.serve(ctx, fs, "--size", strconv.Itoa(fsSize), "--group", group, "--owner", d.b.scratch.owner())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop()) }()
	raw := filepath.Join(d.dir, fs+".raw")
	if err := errors.Join(os.WriteFile(raw, nil, 0o644), os.Truncate(raw, fsSize)); err != nil {
		return err
	}
	loop, detach, err := loopDevice(ctx, raw)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, detach()) }()
	sides := []*volume{{name: "ours", device: ours.info.Device}, {name: "loop", device: loop}}
	for _, v := range sides {
		v.dir = filepath.Join(d.dir, fs, "mnt-"+v.name)
		defer func() { err = errors.Join(err, removeVolume(v.dir)) }()
		if err := v.mount(ctx, fs); err != nil {
			return err
		}
	}
	rounds, turn := 3, 20
	if d.b.opt.quick {
		rounds, turn = 1, 2
	}
	pg, err := findDatabase()
	if err != nil {
		return err
	}
	for _, v := range sides {
		progress("  filling a database on %s of %s", fs, v.name)
		if err := pg.start(ctx, v.dir); err != nil {
			return err
		}
	}
	transactions, err := turns(sides, rounds, func(v *volume) (float64, error) { return pg.transactions(ctx, v.dir, turn) })
	for _, v := range sides {
		err = errors.Join(err, pg.stop(v.dir))
	}
	if err != nil {
		return err
	}
	d.b.report.compare("pgbench on "+fs, "transactions/s", "raw loop", transactions, 0, 0)
	builds, err := turns(sides, rounds, func(v *volume) (float64, error) { return v.build(ctx) })
	if err != nil {
		return err
	}
	d.b.report.compare("build of Go's net/http on "+fs, "s", "raw loop", builds, 0, 0)
	return nil
}

// turns has two sides take turns, each round beginning with the other.
func turns(sides []*volume, rounds int, measure func(*volume) (float64, error)) (*pair, error) {
	p := &pair{}
	for round := range rounds {
		var got [2]float64
		for k := range sides {
			i := (round + k) % len(sides)
			var err error
			if got[i], err = measure(sides[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", sides[i].name, err)
			}
		}
		p.add(got[0], got[1])
	}
	return p, nil
}

// loopDevice returns a loop device on a file.
func loopDevice(ctx context.Context, file string) (device string, detach func() error, err error) {
	out, err := exec.CommandContext(ctx, "losetup", "--direct-io=on", "--sector-size=4096", "--show", "-f", file).CombinedOutput()
	if err != nil {
		return "", nil, fmt.Errorf("losetup: %w: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	return device, func() error { return exec.Command("losetup", "-d", device).Run() }, nil
}

// volume is a mounted file system of one side.
type volume struct{ name, device, dir string }

func (v *volume) mount(ctx context.Context, fs string) error {
	if out, err := exec.CommandContext(ctx, "mkfs."+fs, "-q", v.device).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.%s: %w: %s", fs, err, out)
	}
	if err := os.MkdirAll(v.dir, 0o755); err != nil {
		return err
	}
	return unix.Mount(v.device, v.dir, fs, 0, "")
}

// build builds a package with a new build cache on the file system, and returns the seconds until all of it is on
// the disk.
func (v *volume) build(ctx context.Context) (float64, error) {
	dir := filepath.Join(v.dir, "build")
	for _, x := range []string{"cache", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, x), 0o755); err != nil {
			return 0, err
		}
	}
	f, err := os.Open(v.dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return 0, err
	}
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", "build", "net/http")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOCACHE="+filepath.Join(dir, "cache"), "GOTMPDIR="+filepath.Join(dir, "tmp"), "GOFLAGS=", "GOWORK=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go build: %w: %s", err, out)
	}
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return 0, err
	}
	took := time.Since(began).Seconds()
	return took, os.RemoveAll(dir)
}

// database is the PostgreSQL of the machine, which runs as its user.
type database struct {
	bin  string
	user *user.User
}

func findDatabase() (*database, error) {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		return nil, errors.New("PostgreSQL is not installed: run hack/packages.sh test")
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	return &database{bins[len(bins)-1], u}, nil
}

// run runs a program of PostgreSQL for the database in a directory, and returns what it prints.
func (d *database) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "setpriv", append([]string{"--reuid=" + d.user.Uid, "--regid=" + d.user.Gid, "--clear-groups", filepath.Join(d.bin, program)}, args...)...)
	cmd.Dir = filepath.Join(dir, "pg")
	cmd.Env = append(os.Environ(), "PGHOST="+cmd.Dir, "PGUSER=postgres", "PGDATABASE=postgres", "LC_ALL=C")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if program == "pg_ctl" { // its server keeps what it inherits
		cmd.Stdout, cmd.Stderr = nil, nil
	}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, out.String())
	}
	return out.String(), nil
}

// start makes a database below a directory, fills it and starts it.
func (d *database) start(ctx context.Context, dir string) error {
	pg := filepath.Join(dir, "pg")
	uid, _ := strconv.Atoi(d.user.Uid) // of the system
	gid, _ := strconv.Atoi(d.user.Gid)
	if err := errors.Join(os.Mkdir(pg, 0o700), os.Chown(pg, uid, gid)); err != nil {
		return err
	}
	if _, err := d.run(ctx, dir, "initdb", "--data-checksums", "--auth=trust", "--pgdata="+pg+"/data"); err != nil {
		return err
	}
	options := "-k " + pg + " -c listen_addresses= -c shared_buffers=128MB -c max_wal_size=512MB"
	if _, err := d.run(ctx, dir, "pg_ctl", "start", "--wait", "--pgdata="+pg+"/data", "--log="+pg+"/log", "--options="+options); err != nil {
		return err
	}
	_, err := d.run(ctx, dir, "pgbench", "--initialize", "--quiet", "--scale="+strconv.Itoa(pgScale))
	return err
}

var perSecond = regexp.MustCompile(`tps = ([0-9.]+)`)

// transactions returns the transactions per second of a turn.
func (d *database) transactions(ctx context.Context, dir string, seconds int) (float64, error) {
	if _, err := d.run(ctx, dir, "psql", "--no-psqlrc", "--command=checkpoint"); err != nil {
		return 0, err
	}
	out, err := d.run(ctx, dir, "pgbench", "--no-vacuum", "--client=8", "--jobs=2", "--time="+strconv.Itoa(seconds))
	if err != nil {
		return 0, err
	}
	m := perSecond.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("pgbench printed no rate: %s", out)
	}
	return strconv.ParseFloat(m[1], 64)
}

func (d *database) stop(dir string) error {
	_, err := d.run(context.Background(), dir, "pg_ctl", "stop", "--wait", "--mode=fast", "--pgdata="+filepath.Join(dir, "pg", "data"))
	return err
}

// removeVolumes removes the volumes of a killed run.
func removeVolumes(dir string) error {
	all, _ := filepath.Glob(filepath.Join(dir, "filesystems", "*", "mnt-*")) // the pattern is well formed
	var err error
	for _, v := range all {
		err = errors.Join(err, removeVolume(v))
	}
	return err
}

// removeVolume ends the database on a file system, if one runs, and unmounts the file system, if it is mounted.
func removeVolume(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "pg", "data", "postmaster.pid")); err == nil {
		pg, err := findDatabase()
		if err == nil {
			err = pg.stop(dir)
		}
		if err != nil {
			return err
		}
	}
	err := unix.Unmount(dir, 0)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOENT) { // not mounted, not made
		return nil
	}
	return err
}

// overS3 compares a disk during upload and GC to an S3 server with itself without them.
func (d *disks) overS3(ctx context.Context, group string) (err error) {
	free, err := freeURL("http")
	if err != nil {
		return err
	}
	data := filepath.Join(d.dir, "minio")
	if err := os.MkdirAll(filepath.Join(data, s3Bucket), 0o755); err != nil { // a bucket of MinIO is a directory
		return err
	}
	server, err := d.b.start(ctx, "peer", "", free.Host, "env", "MINIO_ROOT_USER="+s3Key, "MINIO_ROOT_PASSWORD="+s3Key, "MINIO_BROWSER=off",
		filepath.Join(d.b.opt.bin, "minio"), "server", data, "--address", free.Host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	ours, err := d.serve(ctx, "s3", "--size", strconv.Itoa(diskSize), "--group", group, "--owner", d.b.scratch.owner(), "--s3", free.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop()) }()
	side := ours.side(blockTarget(ours.info.Device)...)
	fill := loads.write1M
	fill.size = diskSize
	progress("  filling the disk")
	if _, err := d.b.diskRounds(ctx, fill, 1, 0, []diskSide{side}); err != nil {
		return err
	}
	return d.busy(ctx, ours, side, "upload to S3 and GC running")
}
