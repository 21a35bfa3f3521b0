// Package lsvd has `r lsvd`: log-structured virtual disks. It needs neither a
// server nor PostgreSQL: an object store has the volumes, and the disk daemon of
// this machine, or the command itself, opens their disks.
//
// The daemon performs an operation on a volume if it has the disk open; else the
// command opens the disk, performs the operation and closes the disk.
package lsvd

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// closeTimeout bounds how long a command waits for the store when it closes a
// disk; data that is unsent then stays in the log.
const closeTimeout = time.Minute

// New makes the commands. Their one-line help is in the table of commands.
func New(e *command.Env) *cobra.Command {
	cmd := command.Group("lsvd", "",
		newCreate(e), newList(e), newInfo(e), newAttach(e), newServe(e), newDetach(e),
		newSnapshot(e), newClone(e), newTransfer(e), newResize(e), newFence(e), newSalvage(e), newRotateKey(e), newImport(e), newExport(e), newCheck(e), newDump(e), newGC(e), newBench(e), newDelete(e), newDaemon(e), newHolder(e))
	cmd.Long = `Virtual disks: a write is durable in a local log, then stored in immutable segments in an object store (a directory or
S3). Snapshots and clones copy no data. The commands need no server.

VOLUME is the name or ID of a volume, VOLUME@SNAPSHOT a snapshot of it. docs/lsvd.md is the guide.`
	return cmd
}

// base has the options of every command.
type base struct {
	*command.Env
	storeURL string
}

func newBase(e *command.Env) base { return base{Env: e} }

// flags defines the flags of a command on a store.
func (b *base) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.storeURL, "store", "", "store of the volumes: a directory or URL (RUNTIME_LSVD_STORE; default: a directory under the state directory)")
}

// stateDir returns the state directory of the installation.
func (b *base) stateDir() (string, error) {
	dir, err := filepath.Abs(cmp.Or(b.Options.Env().StateDir, config.DefaultStateDir()))
	return dir, errs.Wrap(err, "state directory")
}

// disksDir returns the directory of the disks of the installation.
func (b *base) disksDir() (string, error) {
	dir, err := b.stateDir()
	return filepath.Join(dir, "lsvd"), err
}

// state returns the logs of this machine.
func (b *base) state() (*host.State, error) {
	dir, err := b.disksDir()
	if err != nil {
		return nil, err
	}
	return host.Open(dir)
}

// url returns the URL of the store, in a form that any process may use.
func (b *base) url() (string, error) {
	url := cmp.Or(b.storeURL, os.Getenv("RUNTIME_LSVD_STORE"))
	if url == "" {
		dir, err := b.stateDir()
		if err != nil {
			return "", err
		}
		url = filepath.Join(dir, "lsvd", "store")
	}
	return host.StoreURL(url)
}

// open opens the store.
func (b *base) open(ctx context.Context) (st store.Store, url string, err error) {
	if url, err = b.url(); err != nil {
		return nil, "", err
	}
	return host.OpenStore(ctx, url)
}

// find opens the store and finds a volume in it.
func (b *base) find(ctx context.Context, nameOrID string) (st store.Store, url string, v *catalog.Volume, err error) {
	if st, url, err = b.open(ctx); err == nil {
		v, err = catalog.Find(ctx, st, nameOrID)
	}
	return st, url, v, err
}

// volumeArg is an argument VOLUME or VOLUME@SNAPSHOT.
func volumeArg(arg string, snapshot bool) (volume, snap string, err error) {
	volume, snap, has := strings.Cut(arg, "@")
	switch {
	case has && !snapshot:
		return "", "", exit.Usagef("%q names a snapshot; this command takes a volume", arg)
	case volume == "" || has && snap == "":
		return "", "", exit.Usagef("%q is neither VOLUME nor VOLUME@SNAPSHOT", arg)
	}
	return volume, snap, nil
}

// sizeArg parses the size of a disk, in bytes: K, M, G or T are binary, as for
// other disk tools. It rounds up to whole blocks.
func sizeArg(s string) (int64, error) {
	text := strings.TrimSpace(s)
	if n := len(text); n > 1 && strings.ContainsRune("kKmMgGtTpP", rune(text[n-1])) {
		text += "iB"
	}
	var b command.Bytes
	if err := b.Set(text); err != nil {
		return 0, exit.Usagef("%q is not a size like 10G, 512MiB or 1T", s)
	}
	return (int64(b) + 4095) / 4096 * 4096, nil
}

// completeVolumes completes the first argument with names of volumes.
func (b *base) completeVolumes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	st, _, err := b.open(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := catalog.List(cmd.Context(), st)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, v := range list {
		out = append(out, v.Label())
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// closing returns a context for closing a disk, also after ctx has ended.
func closing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
}

// closeDisk closes d, and keeps its error in err unless that has one already.
func (b *base) closeDisk(ctx context.Context, d *host.Disk, err *error) {
	cctx, cancel := closing(ctx)
	defer cancel()
	cerr := d.Close(cctx)
	if cerr == nil {
		return
	}
	cerr = errs.New(errs.ClassOf(cerr), "close volume %s: %w", d.Volume.Label(), cerr).
		WithHint("the log under the state directory has the data that the store lacks; the next use of the volume on this machine sends it")
	if *err == nil {
		*err = cerr
	} else {
		b.Notef("also: %v\n", cerr)
	}
}

// discard removes a temporary volume, also after ctx has ended.
func discard(ctx context.Context, st store.Store, state *host.State, id lsvd.ID) error {
	ctx, cancel := closing(ctx)
	defer cancel()
	return state.Discard(ctx, st, id)
}

// bytesCell returns a number of bytes with a unit.
func bytesCell(n int64) string { return schema.CellBytes(n) }

// pairs prints names with values: aligned on a terminal, tab-separated in a pipe.
func (b *base) pairs(rows [][]string) {
	if !b.Terminal {
		b.Table(nil, rows)
		return
	}
	width := 0
	for _, r := range rows {
		width = max(width, console.Columns(r[0]))
	}
	for _, r := range rows {
		b.Printf("%s\n", console.Cut(b.Paint(console.Dim, r[0])+strings.Repeat(" ", width-console.Columns(r[0])+2)+r[1], b.Width()))
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// asError reports whether err has an *errs.Error, and assigns it.
func asError(err error, to **errs.Error) bool { return errors.As(err, to) }
