package etcdstore

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/transfer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// offlineTimeout bounds one request of an Offline.
const offlineTimeout = 30 * time.Second

// Offline is a prefix of a cluster that no server uses, without background work.
type Offline struct {
	client *clientv3.Client
	keys   keys
	limits Limits
	eval   *eval.Evaluator
}

var _ transfer.Store = (*Offline)(nil)

// OpenOffline connects to the cluster. If the store is not to be created, NotFound
// says that there is none.
func OpenOffline(ctx context.Context, url string, kinds []*schema.Kind, create bool) (*Offline, error) {
	u, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	o := &Offline{keys: keys{u.Prefix}, limits: u.Limits}
	if o.eval, err = eval.New(eval.Config{Kinds: kinds, Logger: slog.Default()}); err != nil {
		return nil, err
	}
	if o.client, err = u.dial(offlineTimeout); err != nil {
		return nil, err
	}
	at, err := o.position(ctx)
	if err == nil && at.mod == 0 && !create {
		err = transfer.NoStore("the prefix " + u.Prefix + " of etcd")
	}
	if err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// Close closes the connections.
func (o *Offline) Close() { _ = o.client.Close() } // every write has ended

// txn commits, within a deadline.
func (o *Offline) txn(ctx context.Context, doing string, cmps []clientv3.Cmp, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, offlineTimeout)
	defer cancel()
	resp, err := o.client.Txn(ctx).If(cmps...).Then(ops...).Commit()
	return resp, mapError(err, doing)
}

func (o *Offline) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, offlineTimeout)
	defer cancel()
	resp, err := o.client.Get(ctx, key, opts...)
	return resp, mapError(err, "read the store")
}

// position is the state of a store.
type position struct {
	storedState
	mod  int64 // revision of etcd that wrote it; 0: there is no store
	etcd int64 // revision of etcd at which it was read
}

func (o *Offline) position(ctx context.Context) (p position, err error) {
	resp, err := o.get(ctx, o.keys.state())
	if err != nil {
		return p, err
	}
	if p.etcd = resp.Header.Revision; len(resp.Kvs) == 0 {
		return p, nil
	}
	p.mod = resp.Kvs[0].ModRevision
	if err := decode(resp.Kvs[0], &p.storedState); err != nil {
		return p, err
	}
	return p, p.check()
}

// Read implements transfer.Store.
func (o *Offline) Read(ctx context.Context, f func(transfer.Item) error) (schema.Revision, error) {
	p, err := o.position(ctx)
	if err != nil || p.mod == 0 { // without a state, what there is was left by a copy that did not end
		return 0, err
	}
	err = o.each(ctx, o.keys.lease(""), p.etcd, func(kv *mvccpb.KeyValue) error {
		var x storedLease
		if err := decode(kv, &x); err != nil {
			return err
		}
		id := strings.TrimPrefix(string(kv.Key), o.keys.lease(""))
		return f(transfer.Item{Lease: &transfer.Lease{ID: schema.LeaseID(id), TTL: time.Duration(x.TTL), Ended: x.Ended}})
	})
	if err != nil {
		return 0, err
	}
	err = o.each(ctx, o.keys.entities(), p.etcd, func(kv *mvccpb.KeyValue) error {
		var e storedEntity
		if err := decode(kv, &e); err != nil {
			return err
		}
		x, err := eval.DecodeObject(e.Record)
		if err != nil {
			return err
		}
		return f(transfer.Item{Entity: x})
	})
	return schema.Revision(p.Revision), err
}

// each calls f for each key with a prefix, as they were at a revision of etcd.
func (o *Offline) each(ctx context.Context, prefix string, at int64, f func(*mvccpb.KeyValue) error) error {
	end := clientv3.GetPrefixRangeEnd(prefix)
	for from := prefix; ; {
		page, err := o.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageKeys), clientv3.WithRev(at))
		if err != nil {
			return err
		}
		for _, kv := range page.Kvs {
			if err := f(kv); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// Write implements transfer.Store. It takes many transactions; the key "moving"
// says that they have not ended, and names the one copy that may go on. The last
// one removes it and writes the state, without which there is no store.
func (o *Offline) Write(ctx context.Context, fill func(put func(transfer.Item) error) (schema.Revision, error)) error {
	id := string(schema.NewID("move"))
	if err := o.begin(ctx, id); err != nil {
		return err
	}
	mine := clientv3.Compare(clientv3.Value(o.keys.moving()), "=", id)
	w := &writes{}
	flush := func() error {
		if len(w.ops) == 0 {
			return nil
		}
		resp, err := o.txn(ctx, "write the store", []clientv3.Cmp{mine}, w.ops)
		if err == nil && !resp.Succeeded {
			err = errs.New(errs.Conflict, "another copy into the target has begun")
		}
		w = &writes{}
		return err
	}
	rev, err := fill(func(it transfer.Item) error {
		key, value, err := o.encode(it)
		if err != nil {
			return err
		}
		if n := len(key) + len(value) + opOverhead; len(w.ops) == o.limits.Ops || w.size+n > o.limits.RequestBytes-requestSlack {
			if err := flush(); err != nil {
				return err
			}
		}
		w.put(key, value)
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return err
	}
	floor, err := encode(int64(rev))
	if err != nil {
		return err
	}
	state, err := encode(&storedState{Format: format, Revision: int64(rev)})
	if err != nil {
		return err
	}
	resp, err := o.txn(ctx, "write the store", []clientv3.Cmp{mine, clientv3.Compare(clientv3.ModRevision(o.keys.state()), "=", 0)}, []clientv3.Op{
		clientv3.OpPut(o.keys.floor(), floor), clientv3.OpPut(o.keys.state(), state), clientv3.OpDelete(o.keys.moving()),
	})
	if err == nil && !resp.Succeeded {
		err = errs.New(errs.Conflict, "a server or another copy has written to the target").WithHint("stop every server that uses it, and repeat the command")
	}
	return err
}

// begin removes what a copy that did not end has left, and begins another one.
func (o *Offline) begin(ctx context.Context, id string) error {
	p, err := o.position(ctx)
	if err != nil {
		return err
	}
	left, err := o.get(ctx, o.keys.moving())
	if err != nil {
		return err
	}
	found, err := o.get(ctx, o.keys.entities(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	var moving int64
	if len(left.Kvs) > 0 {
		moving = left.Kvs[0].ModRevision
	}
	if p.Revision > 0 || moving == 0 && found.Count > 0 {
		return transfer.NotEmpty()
	}
	ops := []clientv3.Op{clientv3.OpPut(o.keys.moving(), id), clientv3.OpDelete(o.keys.state()), clientv3.OpDelete(o.keys.floor())}
	for _, prefix := range []string{o.keys.entities(), o.keys.lease(""), o.keys.alive(""), o.keys.prefix + "log/", o.keys.request("")} {
		ops = append(ops, clientv3.OpDelete(prefix, clientv3.WithPrefix()))
	}
	resp, err := o.txn(ctx, "empty the store", []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(o.keys.state()), "=", p.mod), clientv3.Compare(clientv3.ModRevision(o.keys.moving()), "=", moving),
	}, ops)
	if err == nil && !resp.Succeeded {
		err = errs.New(errs.Conflict, "a server or another copy has written to the target").WithHint("stop every server that uses it, and repeat the command")
	}
	return err
}

// encode returns the key and the value of an item.
func (o *Offline) encode(it transfer.Item) (key, value string, err error) {
	if l := it.Lease; l != nil { // no lease of etcd holds it until a server renews it
		value, err = encode(&storedLease{TTL: int64(l.TTL), Ended: l.Ended})
		return o.keys.lease(string(l.ID)), value, err
	}
	r := it.Entity.Rec
	if n, most := len(r.Spec)+len(r.Status), o.limits.recordBytes(); n > most {
		return "", "", errs.New(errs.FailedPrecondition, "%s %s has %d bytes; at most %d fit a request of etcd, with its log", r.Kind, r.ID, n, most).
			With("kind", r.Kind).With("id", string(r.ID)).WithHint(limitHint)
	}
	kind, err := o.eval.Kind(r.Kind)
	if err != nil {
		return "", "", err
	}
	x := *it.Entity
	o.eval.ExtractOld(kind, &x)
	value, err = encode(&storedEntity{Record: x.Raw, Refs: refsOf(&x)})
	return o.keys.entity(eval.KeyOf(r)), value, err
}
