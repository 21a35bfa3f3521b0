package lsvd

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/servers/disks"
)

// daemonTimeout is how long the daemon may take to become ready.
const daemonTimeout = 30 * time.Second

// client is a connection to the disk daemon.
type client struct {
	api.DisksClient
	conn *rpc.Client
}

func (c *client) Close() { c.conn.Close() }

// instance returns the installation of this machine, and creates it if needed.
func (b *base) instance() (*instance.Instance, error) {
	dir, err := b.stateDir()
	if err != nil {
		return nil, err
	}
	return instance.Open(dir, cmp.Or(b.Options.Env().RunDir, config.DefaultRunDir()))
}

// connect returns a connection to the running daemon; NotFound if none runs.
func (b *base) connect(ctx context.Context) (*client, error) {
	dir, err := b.stateDir()
	if err != nil {
		return nil, err
	}
	none := errs.New(errs.NotFound, "no disk daemon runs for %s", dir)
	in, err := instance.Find(dir, cmp.Or(b.Options.Env().RunDir, config.DefaultRunDir()))
	if errs.Is(err, errs.NotFound) {
		return nil, none
	}
	if err != nil {
		return nil, err
	}
	sock := disks.Socket(in.Socket("lsvd"))
	if _, err := os.Stat(sock); errors.Is(err, fs.ErrNotExist) {
		return nil, none
	}
	conn, err := rpc.NewClient("unix://"+sock, rpc.ClientOptions{RetryFor: -1})
	if err != nil {
		return nil, err
	}
	c := &client{api.NewDisksClient(conn), conn}
	if _, err := c.Status(ctx); err != nil {
		conn.Close()
		p, perr := proc.Find(disks.Record(in.Socket("lsvd")))
		if errs.Is(err, errs.Unavailable) && perr == nil && p == nil {
			return nil, none // the socket of a killed daemon
		}
		return nil, errs.Wrap(err, "ask the disk daemon")
	}
	return c, nil
}

// daemon returns the daemon, and starts it if it does not run.
func (b *base) daemon(ctx context.Context) (*client, error) {
	c, err := b.connect(ctx)
	if !errs.Is(err, errs.NotFound) {
		return c, err
	}
	in, err := b.instance()
	if err != nil {
		return nil, err
	}
	exe, err := daemonPath()
	if err != nil {
		return nil, err
	}
	_, err = proc.Ensure(ctx, proc.Spec{
		Name: "the disk daemon", Path: exe, Args: []string{"lsvd", "daemon", "--state-dir", in.StateDir, "--run-dir", filepath.Dir(in.RunDir)},
		LogFile: in.State("logs", "lsvd.log"), RecordFile: disks.Record(in.Socket("lsvd")), ReadyTimeout: daemonTimeout,
		Ready: func(ctx context.Context) error {
			c, err := b.connect(ctx)
			if err == nil {
				c.Close()
			}
			return err
		},
	})
	if err != nil {
		// Another command may have started one at the same time.
		if c, again := b.connect(ctx); again == nil {
			return c, nil
		}
		return nil, err
	}
	b.Notef("started the disk daemon; `r lsvd daemon --stop` stops it\n")
	return b.connect(ctx)
}

// attached returns the daemon and its disk of a volume; nil if no daemon runs or
// it does not have the volume attached.
func (b *base) attached(ctx context.Context, v *catalog.Volume) (*client, *api.Disk, error) {
	c, err := b.connect(ctx)
	if errs.Is(err, errs.NotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	r, err := c.Get(ctx, &api.VolumeRequest{Volume: v.ID.String()})
	if errs.Is(err, errs.NotFound) {
		c.Close()
		return nil, nil, nil
	}
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, &r.Disk, nil
}

// allAttached returns the disks of the daemon by ID; none if it does not run.
func (b *base) allAttached(ctx context.Context) (map[string]*api.Disk, error) {
	out := map[string]*api.Disk{}
	c, err := b.connect(ctx)
	if errs.Is(err, errs.NotFound) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	for i := range r.Disks {
		out[r.Disks[i].ID] = &r.Disks[i]
	}
	return out, nil
}

// attachDisk has the daemon attach a disk. With --json it prints the disk and
// returns nil.
func (b *base) attachDisk(ctx context.Context, req *api.AttachRequest) (*api.Disk, error) {
	c, err := b.daemon(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r, err := c.Attach(ctx, req)
	if err != nil {
		return nil, err
	}
	if b.JSON {
		return nil, b.PrintJSON(r.Disk)
	}
	if r.Disk.LostAfter != nil {
		b.Notef("attached the disk in its state at sequence number %d; later writes are not in it\n", *r.Disk.LostAfter)
	}
	b.noteStranded(r.Disk.ID, label(&r.Disk))
	return &r.Disk, nil
}
