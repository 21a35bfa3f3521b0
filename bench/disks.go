package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/lsvd"
)

const (
	diskSize   = 1 << 30
	diskCache  = 128 << 20
	diskMemory = 512 << 20 // memory limit of each side that serves from files, page cache included
	hotSize    = 96 << 20  // fits the cache
)

var loads = struct{ write1M, read1M, randwrite1, randwrite32, randread32, hotread32, fsync load }{
	write1M:     load{name: "write 1M", args: "--rw=write --bs=1m --iodepth=8", mib: true, size: diskSize / 2, once: true},
	read1M:      load{name: "read 1M", args: "--rw=read --bs=1m --iodepth=8", mib: true, size: diskSize},
	randwrite1:  load{name: "randwrite 4K QD1", args: "--rw=randwrite --bs=4k --iodepth=1", size: diskSize},
	randwrite32: load{name: "randwrite 4K QD32", args: "--rw=randwrite --bs=4k --iodepth=32", size: diskSize},
	randread32:  load{name: "randread 4K QD32", args: "--rw=randread --bs=4k --iodepth=32", size: diskSize},
	hotread32:   load{name: "randread 4K QD32 in the cache", args: "--rw=randread --bs=4k --iodepth=32", size: hotSize},
	fsync:       load{name: "4K write+fsync", args: "--rw=randwrite --bs=4k --iodepth=1 --fsync=1", size: diskSize},
}

// disks is the benchmark of the virtual disk.
type disks struct {
	b      *bench
	dir    string
	rounds int
	turn   time.Duration
}

func newDisks(b *bench, dir string) (*disks, error) {
	d := &disks{b: b, dir: b.scratch.path(dir), rounds: 5, turn: 2 * time.Second}
	if b.opt.quick {
		d.rounds, d.turn = 2, time.Second
	}
	return d, os.Mkdir(d.dir, 0o755)
}

// needPrograms fails if a program is not installed.
func needPrograms(names ...string) error {
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%w: run hack/packages.sh test", err)
		}
	}
	return nil
}

func benchDisks(ctx context.Context, b *bench) error {
	if err := needPrograms("fio", "nbdkit", "qemu-nbd", "qemu-img", "losetup"); err != nil {
		return err
	}
	d, err := newDisks(b, "disks")
	if err != nil {
		return err
	}
	group, err := b.scratch.memGroup("ours", diskMemory)
	if err != nil {
		return err
	}
	ours, err := d.serve(ctx, "main", "--size", strconv.Itoa(diskSize), "--group", group, "--owner", b.scratch.owner())
	if err != nil {
		return err
	}
	err = d.overNBD(ctx, ours)
	if err == nil {
		err = d.attached(ctx, ours)
	}
	return errors.Join(err, ours.stop())
}

// disk is a child that serves a disk.
type disk struct {
	*process
	info diskInfo
	nbd  string
	ctl  string
	hold bool // keep the store waiting during turns
}

// serve starts a child that serves the volume in the directory name.
func (d *disks) serve(ctx context.Context, name string, args ...string) (*disk, error) {
	dir := filepath.Join(d.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p, err := d.b.start(ctx, "disk", append([]string{"--dir", dir, "--cache", strconv.Itoa(diskCache)}, args...)...)
	if err != nil {
		return nil, err
	}
	o := diskOptions{dir: dir, volume: lsvd.ID{1}.String()}
	for i := range args[:max(len(args)-1, 0)] {
		if args[i] == "--volume" {
			o.volume = args[i+1]
		}
	}
	x := &disk{process: p, nbd: o.socket("nbd"), ctl: o.socket("ctl"), hold: true}
	return x, json.Unmarshal([]byte(p.address), &x.info)
}

// tell sends a command and returns the answer.
func (x *disk) tell(ctx context.Context, command string) (string, error) {
	var dial net.Dialer
	c, err := dial.DialContext(ctx, "unix", x.ctl)
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := fmt.Fprintln(c, command); err != nil {
		return "", err
	}
	in := bufio.NewScanner(c)
	if !in.Scan() {
		return "", fmt.Errorf("disk did not answer %q: %w: %s", command, errors.Join(io.ErrUnexpectedEOF, in.Err(), ctx.Err()), tail(x.log))
	}
	if why, ok := strings.CutPrefix(in.Text(), "error "); ok {
		return "", fmt.Errorf("disk: %s: %s", command, why)
	}
	return in.Text(), nil
}

// took is tell for commands that answer with a number of milliseconds.
func (x *disk) took(ctx context.Context, command string) (float64, error) {
	s, err := x.tell(ctx, command)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(s, 64)
}

// side returns the disk as a side. Its writes during a turn reach the store
// after the turn, so that its background work does not overlap the turns of
// others.
func (x *disk) side(target ...string) diskSide {
	return diskSide{name: "ours", target: target,
		before: func(ctx context.Context) error {
			if !x.hold {
				return nil
			}
			_, err := x.tell(ctx, "hold")
			return err
		},
		after: func(ctx context.Context) error {
			_, err := x.tell(ctx, "go")
			if err == nil {
				_, err = x.tell(ctx, "settle")
			}
			return err
		}}
}

func nbdTarget(socket string) []string {
	return []string{"--ioengine=nbd", "--uri=nbd+unix:///?socket=" + socket}
}

func blockTarget(device string) []string {
	return []string{"--ioengine=libaio", "--direct=1", "--filename=" + device}
}

// overNBD compares with other NBD servers.
func (d *disks) overNBD(ctx context.Context, ours *disk) (err error) {
	group, err := d.b.scratch.memGroup("peers", diskMemory)
	if err != nil {
		return err
	}
	raw, qcow := filepath.Join(d.dir, "raw"), filepath.Join(d.dir, "qcow2")
	if err := os.WriteFile(raw, nil, 0o644); err != nil {
		return err
	}
	if err := os.Truncate(raw, diskSize); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", qcow, strconv.Itoa(diskSize)).CombinedOutput(); err != nil {
		return fmt.Errorf("qemu-img: %w: %s", err, out)
	}
	size := strconv.Itoa(diskSize)
	sides := []diskSide{ours.side(nbdTarget(ours.nbd)...)}
	for _, p := range []struct {
		name, group string
		command     []string // @ is the socket
	}{
		{"nbdkit memory", "", []string{"nbdkit", "-f", "-U", "@", "memory", size}},
		{"nbdkit file", group, []string{"nbdkit", "-f", "-U", "@", "file", raw + ".2"}},
		{"qemu-nbd raw", group, []string{"qemu-nbd", "-t", "-k", "@", "-f", "raw", "--cache=none", "--aio=native", raw}},
		{"qemu-nbd qcow2", group, []string{"qemu-nbd", "-t", "-k", "@", "-f", "qcow2", "--cache=none", "--aio=native", qcow}},
	} {
		if p.name == "nbdkit file" {
			f, err := os.Create(raw + ".2")
			if err == nil {
				err = errors.Join(f.Truncate(diskSize), f.Close())
			}
			if err != nil {
				return err
			}
		}
		socket := filepath.Join(d.dir, strings.ReplaceAll(p.name, " ", "-"))
		args := []string{p.group, socket}
		for _, a := range p.command {
			args = append(args, strings.ReplaceAll(a, "@", socket))
		}
		x, err := d.b.start(ctx, "peer", args...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, x.stop()) }()
		sides = append(sides, diskSide{name: p.name, target: nbdTarget(socket)})
	}
	fill := loads.write1M
	fill.size = diskSize
	progress("  filling the disks")
	if _, err := d.b.diskRounds(ctx, fill, 1, 0, sides); err != nil {
		return err
	}
	goals := map[string]float64{
		"randwrite 4K QD32 nbdkit memory": 0.5, "randwrite 4K QD32 qemu-nbd qcow2": 1.6, "4K write+fsync qemu-nbd qcow2": 0.9,
	}
	for _, l := range []load{loads.write1M, loads.randwrite1, loads.randwrite32, loads.fsync, loads.randread32} {
		got, err := d.b.diskRounds(ctx, l, d.rounds, d.turn, sides)
		if err != nil {
			return err
		}
		for _, s := range sides[1:] {
			d.b.report.compare("NBD: "+l.name, l.unit(), s.name, pairOf(got["ours"], got[s.name], rate), goals[l.name+" "+s.name], 0)
		}
	}
	return d.slow(ctx)
}

// slow compares with a delay of 20 ms behind every request.
func (d *disks) slow(ctx context.Context) (err error) {
	ours, err := d.serve(ctx, "slow", "--size", strconv.Itoa(diskSize), "--delay", "20ms")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop()) }()
	socket := filepath.Join(d.dir, "delay")
	peer, err := d.b.start(ctx, "peer", "", socket, "nbdkit", "-f", "-U", socket, "--filter=delay", "memory", strconv.Itoa(diskSize), "rdelay=20ms", "wdelay=20ms")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.stop()) }()
	ours.hold = false
	sides := []diskSide{ours.side(nbdTarget(ours.nbd)...), {name: "nbdkit delay", target: nbdTarget(socket)}}
	got, err := d.b.diskRounds(ctx, loads.randwrite32, min(d.rounds, 3), d.turn, sides)
	if err != nil {
		return err
	}
	d.b.report.compare("NBD: randwrite 4K QD32, 20 ms behind", "IOPS", "nbdkit delay", pairOf(got["ours"], got["nbdkit delay"], rate), 0, 0)
	return nil
}

// attached compares block devices with a loop device on a file.
func (d *disks) attached(ctx context.Context, ours *disk) (err error) {
	const peer = "raw loop"
	loop, detach, err := loopDevice(ctx, filepath.Join(d.dir, "raw"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, detach()) }()
	side := ours.side(blockTarget(ours.info.Device)...)
	sides := []diskSide{side, {name: peer, target: blockTarget(loop)}}
	for _, x := range []struct {
		load
		goal float64
	}{
		{loads.randwrite1, 1.5}, {loads.randwrite32, 1}, {loads.fsync, 0.95}, {loads.write1M, 0.75},
		{loads.read1M, 0.9}, {loads.randread32, 0.6}, {loads.hotread32, 1},
	} {
		what := x.name
		switch x.name {
		case loads.randread32.name:
			what += " larger than the cache"
		case loads.hotread32.name:
			warm := loads.read1M
			warm.size, warm.once = hotSize, true
			for range 2 {
				if _, err := d.b.fio(ctx, warm, 0, side.target...); err != nil {
					return err
				}
			}
		}
		got, err := d.b.diskRounds(ctx, x.load, d.rounds, d.turn, sides)
		if err != nil {
			return err
		}
		d.b.report.compare("attached: "+what, x.unit(), peer, pairOf(got["ours"], got[peer], rate), x.goal, 0)
	}
	return d.busy(ctx, ours, side, "upload and GC running")
}

// busy compares a disk during upload and GC with itself without them.
func (d *disks) busy(ctx context.Context, ours *disk, idle diskSide, what string) error {
	busy := idle
	busy.name = "busy"
	busy.before = nil // let the store accept writes
	collected := func() (int64, error) {
		text, err := ours.tell(ctx, "stats")
		if err != nil {
			return 0, err
		}
		var st lsvd.Stats
		err = json.Unmarshal([]byte(text), &st)
		return st.StoredGC, err
	}
	for range 8 { // until there is enough garbage to keep GC busy
		if _, err := d.b.diskRounds(ctx, loads.randwrite32, 1, 2*d.turn, []diskSide{idle}); err != nil {
			return err
		}
		if n, err := collected(); n > 0 || err != nil {
			break
		}
	}
	before, err := collected()
	if err != nil {
		return err
	}
	got, err := d.b.diskRounds(ctx, loads.randwrite32, d.rounds, 2*d.turn, []diskSide{busy, idle})
	if err != nil {
		return err
	}
	after, err := collected()
	if err == nil && after == before {
		err = errors.New("GC did nothing")
	}
	if err != nil {
		return err
	}
	d.b.report.compare("attached: randwrite 4K QD32, "+what, "IOPS", "itself idle", pairOf(got["busy"], got["ours"], rate), 0.7, 0)
	d.b.report.compare("attached: randwrite 4K QD32, "+what+", p99", "ms", "itself idle", pairOf(got["busy"], got["ours"], p99), 0, 3)
	return nil
}
