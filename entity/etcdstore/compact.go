package etcdstore

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	compactInterval = 30 * time.Second
	// dropRevisions is how many revisions one transaction drops.
	dropRevisions = 100
)

// compact keeps the log within its bounds until ctx ends.
func (s *Store) compact(ctx context.Context) {
	tick := time.NewTicker(compactInterval)
	defer tick.Stop()
	for {
		if err := s.Compact(ctx, s.cfg.KeepFor, s.cfg.KeepRevisions); err != nil && ctx.Err() == nil && !errs.Is(err, errs.Unavailable) {
			s.logger.Warn("cannot compact the log", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Compact drops the changes of the log that are older than keepFor, or farther
// back than keepRevisions. The store does so by itself. Several servers may.
func (s *Store) Compact(ctx context.Context, keepFor time.Duration, keepRevisions int64) error {
	floor, err := s.raiseFloor(ctx, now().Add(-keepFor).UnixMicro(), keepRevisions)
	if err != nil {
		return mapError(err, "compact the log")
	}
	s.metrics.floor.Set(float64(floor))
	// See eval.PrevMargin: what is just below the floor is needed for lists.
	for more := true; more && err == nil; {
		more, err = s.dropLog(ctx, floor-eval.PrevMargin)
	}
	return mapError(err, "compact the log")
}

// raiseFloor finds and publishes the new floor: readers check it after they have
// read, so it comes before anything is dropped.
func (s *Store) raiseFloor(ctx context.Context, old int64, keepRevisions int64) (schema.Revision, error) {
	p, err := s.position(ctx)
	if err != nil {
		return 0, err
	}
	floor := p.Floor
	for more := true; more; {
		page, err := s.getPage(ctx, s.keys.log(floor+1), clientv3.WithRange(s.keys.log(p.Last+1)), clientv3.WithLimit(dropRevisions))
		if err != nil {
			return 0, err
		}
		more = page.More
		for _, kv := range page.Kvs {
			rev, err := s.keys.revisionOf(kv.Key)
			if err != nil {
				return 0, err
			}
			var entry storedLog
			if err := decode(kv, &entry); err != nil {
				return 0, err
			}
			if entry.At > old && rev > p.Last-schema.Revision(keepRevisions) {
				more = false
				break
			}
			floor = rev
		}
	}
	if floor == p.Floor {
		return floor, nil
	}
	resp, err := s.client.Get(ctx, s.keys.floor())
	if err != nil {
		return 0, err
	}
	var mod, have int64
	if len(resp.Kvs) > 0 {
		mod = resp.Kvs[0].ModRevision
		if err := decode(resp.Kvs[0], &have); err != nil || have >= int64(floor) {
			return schema.Revision(have), err
		}
	}
	value, err := encode(int64(floor))
	if err != nil {
		return 0, err
	}
	done, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.keys.floor()), "=", mod)).Then(clientv3.OpPut(s.keys.floor(), value)).Commit()
	if err == nil && !done.Succeeded {
		floor = p.Floor // another server has raised it
	}
	return floor, err
}

// dropLog drops the oldest revisions up to a bound, and reports whether there may
// be more.
func (s *Store) dropLog(ctx context.Context, bound schema.Revision) (more bool, err error) {
	if bound <= 0 {
		return false, nil
	}
	page, err := s.getPage(ctx, s.keys.log(0), clientv3.WithRange(s.keys.log(bound+1)), clientv3.WithLimit(min(dropRevisions, int64(s.limits.Ops-1))))
	if err != nil || len(page.Kvs) == 0 {
		return false, err
	}
	// A request id goes with its log, before it can be used again.
	ops := []clientv3.Op{clientv3.OpDelete(s.keys.log(0), clientv3.WithRange(string(page.Kvs[len(page.Kvs)-1].Key)+"\x00"))}
	for _, kv := range page.Kvs {
		var entry storedLog
		if err := decode(kv, &entry); err != nil {
			return false, err
		}
		if entry.Request != "" {
			ops = append(ops, clientv3.OpDelete(s.keys.request(entry.Request)))
		}
	}
	// Another server that dropped them already has also let the ids go.
	first := string(page.Kvs[0].Key)
	_, err = s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(first), "=", page.Kvs[0].CreateRevision)).Then(ops...).Commit()
	return page.More, err
}
