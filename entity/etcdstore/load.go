package etcdstore

import (
	"context"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// projectSample is how many entities of a project are examined when it is
// deleted: none of them may stay.
const projectSample = 1001

// loader fills a view from the replica; requests and leases, which it has not, it
// reads from etcd. Store.applying is held.
type loader struct {
	ctx  context.Context
	s    *Store
	cmps []clientv3.Cmp // what has to be as it was read
}

// load loads everything that v misses, and empties the list.
func (l *loader) load(v *eval.View) error {
	want := v.Missing
	v.Missing = eval.Wants{}
	l.local(v, &want)
	for _, ids := range []map[schema.LeaseID]struct{}{want.Ending, want.Leases} {
		for id := range ids {
			if _, known := v.Leases[id]; known {
				continue
			}
			if err := l.lease(v, id); err != nil {
				return err
			}
		}
	}
	for id := range want.Replies {
		var err error
		if v.Replies[id], err = l.reply(id); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) local(v *eval.View, want *eval.Wants) {
	r := l.s.replica
	r.mu.RLock()
	defer r.mu.RUnlock()
	for k := range want.Objects {
		v.Objects[k] = r.objects[k]
	}
	for k := range want.Exists {
		v.Exists[k] = r.objects[k] != nil
	}
	for u := range want.Owners {
		v.Owners[u] = r.owners[u]
	}
	for k := range want.Referrers {
		refs := &eval.Referrers{Refs: map[eval.RefID]schema.OnDelete{}}
		v.Referrers[k] = refs
		for id, policy := range r.refs[k] {
			if refs.Refs[id] = policy; len(refs.Refs) > v.MaxCascade {
				refs.More = true
				break
			}
		}
	}
	for id := range want.Members {
		m := &eval.Members{}
		v.Members[id] = m
		m.Keys, m.More = sample(r.members[id], v.MaxCascade)
	}
	for id := range want.Projects {
		v.Projects[id], _ = sample(r.projects[id], projectSample)
	}
}

// sample returns at most one key more than n, and whether it did.
func sample(set map[eval.Key]struct{}, n int) (list []eval.Key, more bool) {
	for k := range set {
		if list = append(list, k); len(list) > n {
			return list, true
		}
	}
	return list, false
}

// lease reads the state of a lease, on which the commit depends.
func (l *loader) lease(v *eval.View, id schema.LeaseID) error {
	x, err := l.s.readLease(l.ctx, string(id))
	if err != nil {
		return err
	}
	v.Leases[id] = eval.LeaseState{Exists: x.mod != 0, Lapsed: x.mod != 0 && (x.Ended || !x.alive), Ended: x.Ended}
	if x.mod != 0 {
		l.cmps = append(l.cmps, clientv3.Compare(clientv3.ModRevision(l.s.keys.lease(string(id))), "=", x.mod))
	}
	if x.mod != 0 && !x.Ended && !x.alive {
		l.cmps = append(l.cmps, clientv3.Compare(clientv3.CreateRevision(l.s.keys.alive(string(id))), "=", 0))
	}
	return nil
}

// reply reads the outcome of a committed request; nil: there is none in the log.
func (l *loader) reply(id string) (*eval.Reply, error) {
	resp, err := l.s.client.Get(l.ctx, l.s.keys.request(id))
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	rev, err := strconv.ParseInt(string(resp.Kvs[0].Value), 10, 64)
	if err != nil {
		return nil, errs.New(errs.Corrupt, "key %s: %w", resp.Kvs[0].Key, err)
	}
	entry, err := l.s.readEntry(l.ctx, schema.Revision(rev))
	if err != nil || entry == nil {
		return nil, err
	}
	reply := &eval.Reply{Hash: entry.Hash, Revision: schema.Revision(rev), Records: map[eval.Key]*schema.Record{}}
	for _, c := range entry.Changes {
		rec, err := eval.DecodeRecord(c.Record)
		if err != nil {
			return nil, err
		}
		if c.Type == eval.LogDelete {
			rec.Revision = schema.Revision(rev)
		}
		reply.Records[eval.KeyOf(rec)] = rec
	}
	return reply, nil
}

// readEntry reads a revision of the log; nil: it is not there.
func (s *Store) readEntry(ctx context.Context, rev schema.Revision) (*storedLog, error) {
	resp, err := s.client.Get(ctx, s.keys.log(rev))
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	entry := &storedLog{}
	return entry, decode(resp.Kvs[0], entry)
}
