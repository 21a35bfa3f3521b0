package firewall

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// checkEvery is the time between two checks of a firewall if the kernel
	// reports nothing.
	checkEvery = time.Second
	// checkPause bounds the work on a machine whose rules change all the time.
	checkPause = 50 * time.Millisecond
)

// Keep calls check after every change of the machine's nftables rules, and every
// second, until ctx ends. check calls Ensure.
func Keep(ctx context.Context, logger *slog.Logger, check func() error) error {
	changes, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	received := make(chan struct{})
	go func() {
		defer close(received)
		for {
			// ENOBUFS means that there were too many changes, so check.
			if _, err := changes.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return // the socket was closed; after another error the ticker remains
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	defer func() {
		changes.Close()
		<-received
	}()
	t := time.NewTicker(checkEvery)
	defer t.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-t.C:
		}
		err := check()
		if err != nil && !failing {
			logger.Error("cannot check the firewall of the guests' network; a changed firewall lets no packet pass until it is restored", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(checkPause):
		}
	}
}
