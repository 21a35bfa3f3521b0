package etcdstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/schema"
)

// leaseState is what the two keys of a lease say.
type leaseState struct {
	storedLease
	mod   int64 // of its key; 0: there is none
	alive bool
}

func (s *Store) readLease(ctx context.Context, id string) (x leaseState, err error) {
	resp, err := s.client.Txn(ctx).Then(clientv3.OpGet(s.keys.lease(id)), clientv3.OpGet(s.keys.alive(id), clientv3.WithCountOnly())).Commit()
	if err != nil {
		return x, err
	}
	x.alive = resp.Responses[1].GetResponseRange().Count > 0
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		x.mod = kvs[0].ModRevision
		err = decode(kvs[0], &x.storedLease)
	}
	return x, err
}

// hold binds the keys of a lease to a new lease of etcd, if the first was not
// modified since; mod is 0 for a new one. It reports whether it was not.
func (s *Store) hold(ctx context.Context, id string, ttl time.Duration, mod int64) (l entity.Lease, ok bool, err error) {
	began := time.Now()
	etcd, err := s.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second)) // etcd makes short ones longer
	if err != nil {
		return l, false, err
	}
	value, err := encode(&storedLease{TTL: int64(ttl), Etcd: int64(etcd.ID)})
	if err != nil {
		return l, false, err
	}
	resp, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.keys.lease(id)), "=", mod)).
		Then(clientv3.OpPut(s.keys.lease(id), value), clientv3.OpPut(s.keys.alive(id), "", clientv3.WithLease(etcd.ID))).Commit()
	if err != nil {
		return l, false, err
	}
	if !resp.Succeeded {
		_, _ = s.client.Revoke(ctx, etcd.ID) // otherwise it lapses unused
	}
	return leaseOf(id, ttl, began, etcd.TTL), resp.Succeeded, nil
}

func leaseOf(id string, ttl time.Duration, began time.Time, seconds int64) entity.Lease {
	return entity.Lease{ID: schema.LeaseID(id), TTL: ttl, ExpiresAt: began.Add(time.Duration(seconds) * time.Second).UTC()}
}

// Grant implements entity.Store.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (entity.Lease, error) {
	if err := eval.CheckTTL(ttl); err != nil {
		return entity.Lease{}, err
	}
	return retryRead(ctx, s, "grant lease", func(ctx context.Context) (entity.Lease, error) {
		// If the answer is lost, the caller repeats the call, and the first
		// lease lapses unused.
		l, _, err := s.hold(ctx, string(schema.NewID("lease")), ttl, 0)
		return l, err
	})
}

// KeepAlive implements entity.Store. A lease that is over but has not been ended
// yet may be renewed too: no server has seen it lapse.
func (s *Store) KeepAlive(ctx context.Context, id schema.LeaseID) (entity.Lease, error) {
	if !eval.ValidID.MatchString(string(id)) {
		return entity.Lease{ID: id}, eval.ErrLapsed(id)
	}
	return retryRead(ctx, s, "renew lease", func(ctx context.Context) (entity.Lease, error) { return s.renew(ctx, string(id)) })
}

func (s *Store) renew(ctx context.Context, id string) (entity.Lease, error) {
	for {
		began := time.Now()
		x, err := s.readLease(ctx, id)
		if err != nil {
			return entity.Lease{}, err
		}
		if x.mod == 0 || x.Ended {
			return entity.Lease{ID: schema.LeaseID(id)}, eval.ErrLapsed(schema.LeaseID(id))
		}
		if x.alive {
			resp, err := s.client.KeepAliveOnce(ctx, clientv3.LeaseID(x.Etcd))
			if err == nil {
				return leaseOf(id, time.Duration(x.TTL), began, resp.TTL), nil
			}
			if !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
				return entity.Lease{}, err
			}
		}
		l, ok, err := s.hold(ctx, id, time.Duration(x.TTL), x.mod)
		if err != nil || ok {
			return l, err
		}
	}
}

// Revoke implements entity.Store. NotFound if there is no such lease.
func (s *Store) Revoke(ctx context.Context, id schema.LeaseID) error {
	if !eval.ValidID.MatchString(string(id)) {
		return eval.ErrLapsed(id)
	}
	_, err := s.queue.Submit(ctx, &eval.Txn{EndLease: id})
	return err
}

// expire ends lapsed leases until ctx ends.
func (s *Store) expire(ctx context.Context) {
	e := eval.Expirer{Queue: s.queue, Logger: s.logger, Interval: s.cfg.ExpireInterval, Lapsed: s.lapsed, Ended: s.metrics.expired.Inc}
	e.Run(ctx)
}

// looked is a key, bound to a lease of etcd, that says that this server checks for
// lapsed leases. Only the expirer uses it.
type looked struct {
	lease clientv3.LeaseID // 0: none yet
	until time.Time        // renewed before
}

// look renews the key, and reports whether no server had one: then holders may
// have been unable to renew.
func (s *Store) look(ctx context.Context) (away bool, err error) {
	const every = eval.LeaseGap / 4
	k := &s.looked
	if k.lease != 0 && time.Now().Before(k.until) {
		return false, nil
	}
	if k.lease != 0 {
		_, err := s.client.KeepAliveOnce(ctx, k.lease)
		if err == nil {
			k.until = time.Now().Add(every)
			return false, nil
		}
		if !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
			return false, err
		}
		k.lease = 0
	}
	others, err := s.client.Get(ctx, s.keys.looked(""), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return false, err
	}
	if others.Count == 0 {
		// The key comes after the grace, so that a failure repeats it.
		if err := s.grace(ctx); err != nil {
			return true, err
		}
	}
	lease, err := s.client.Grant(ctx, int64(eval.LeaseGap/time.Second))
	if err != nil {
		return false, err
	}
	if _, err := s.client.Put(ctx, s.keys.looked(string(schema.NewID("server"))), "", clientv3.WithLease(lease.ID)); err != nil {
		return false, err
	}
	k.lease, k.until = lease.ID, time.Now().Add(every)
	return others.Count == 0, nil
}

// grace gives every lease its full time again.
func (s *Store) grace(ctx context.Context) error {
	renewed := 0
	err := s.eachLease(ctx, func(id string, kv *mvccpb.KeyValue, alive bool) error {
		var x storedLease
		if err := decode(kv, &x); err != nil || x.Ended {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Attempt)
		defer cancel()
		_, err := s.renew(ctx, id)
		renewed++
		return err
	})
	if renewed > 0 {
		s.logger.Warn("no server renewed leases for a while: each gets its full time again", "leases", renewed)
	}
	return err
}

// eachLease calls f for every lease, by id.
func (s *Store) eachLease(ctx context.Context, f func(id string, kv *mvccpb.KeyValue, alive bool) error) error {
	read := func(prefix string) clientv3.Op {
		return clientv3.OpGet(prefix, clientv3.WithPrefix())
	}
	resp, err := s.client.Txn(ctx).Then(read(s.keys.lease("")), read(s.keys.alive(""))).Commit()
	if err != nil {
		return err
	}
	alive := map[string]bool{}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		alive[strings.TrimPrefix(string(kv.Key), s.keys.alive(""))] = true
	}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		id := strings.TrimPrefix(string(kv.Key), s.keys.lease(""))
		if err := f(id, kv, alive[id]); err != nil {
			return err
		}
	}
	return nil
}

// lapsed returns lapsed leases in the order of their ids.
func (s *Store) lapsed(ctx context.Context, after string, limit int) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
	defer cancel()
	if away, err := s.look(ctx); err != nil || away {
		return nil, mapError(err, "read lapsed leases")
	}
	// Every living lease has both keys, so equal numbers mean that none lapsed.
	count := func(prefix string) clientv3.Op {
		return clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	}
	resp, err := s.client.Txn(ctx).Then(count(s.keys.lease("")), count(s.keys.alive(""))).Commit()
	if err != nil {
		return nil, mapError(err, "read lapsed leases")
	}
	if resp.Responses[0].GetResponseRange().Count == resp.Responses[1].GetResponseRange().Count {
		return nil, nil
	}
	err = s.eachLease(ctx, func(id string, _ *mvccpb.KeyValue, alive bool) error {
		if !alive && id > after {
			ids = append(ids, id)
		}
		return nil
	})
	slices.Sort(ids)
	return ids[:min(limit, len(ids))], mapError(err, "read lapsed leases")
}
