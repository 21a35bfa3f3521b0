// Command actor is a server's driver that does one thing, for tests that kill it at the points of package fault.
//
//	actor STATE-DIR RUN-BASE BIN-DIR snapshot SANDBOX SNAPSHOT [leave]
//	actor STATE-DIR RUN-BASE BIN-DIR ensure SPECIFICATION
//	actor STATE-DIR RUN-BASE BIN-DIR delete-snapshot SNAPSHOT
//	actor STATE-DIR RUN-BASE BIN-DIR copy|delete-copy SNAPSHOT STORE-DIR
//	actor STATE-DIR RUN-BASE BIN-DIR fetch SNAPSHOT STORE-DIR SUM
//
// containerd must run. The specification is an execution.Spec as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/executiontest"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "actor:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	in, err := instance.Open(args[0], args[1])
	if err != nil {
		return err
	}
	bin, op, args := args[2], args[3], args[4:]
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	daemon := containerd.New(containerd.Config{Instance: in, BinDir: bin, Logger: logger})
	if err := daemon.Start(ctx); err != nil {
		return err
	}
	d := runsc.New(runsc.Config{
		Instance: in, BinDir: bin, Containerd: daemon, Images: containerd.NewImages(daemon),
		Network: network.New(network.Config{Instance: in, Logger: logger}), Logger: logger,
	})
	if err := d.Start(ctx); err != nil {
		return err
	}
	defer d.Close()
	switch op {
	case "snapshot":
		_, err = d.Snapshot(ctx, args[0], args[1], execution.SnapshotOptions{Leave: len(args) > 2})
	case "delete-snapshot":
		err = d.DeleteSnapshot(ctx, args[0])
	case "ensure":
		var s execution.Spec
		if err = json.Unmarshal([]byte(args[0]), &s); err == nil {
			_, err = d.Ensure(ctx, s)
		}
	case "copy", "fetch", "delete-copy":
		var s store.Store
		if s, err = dir.Open(args[1]); err != nil {
			return err
		}
		o := executiontest.Objects{Store: s}
		switch op {
		case "copy":
			_, err = d.CopySnapshot(ctx, args[0], o)
		case "fetch":
			err = d.FetchSnapshot(ctx, args[0], args[2], o)
		default:
			err = d.DeleteSnapshotCopy(ctx, o)
		}
	default:
		err = fmt.Errorf("no operation %q", op)
	}
	return err
}
