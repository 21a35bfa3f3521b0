package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

const (
	valueBytes = 250
	keysEach   = 8 // options of a client
)

// began is the zero of the times in values.
var began = time.Now()

// stamp fills a value with the time of sending, the number of its key, and the
// ordinal of the put of that key.
func stamp(data []byte, key, seq uint64) {
	binary.BigEndian.PutUint64(data, uint64(time.Since(began)))
	binary.BigEndian.PutUint64(data[8:], key)
	binary.BigEndian.PutUint64(data[16:], seq)
}

// seen is the information that a watcher reads from a value.
type seen struct {
	after    time.Duration
	key, seq uint64
}

func read(data []byte) seen {
	return seen{
		after: time.Since(began) - time.Duration(binary.BigEndian.Uint64(data)),
		key:   binary.BigEndian.Uint64(data[8:]), seq: binary.BigEndian.Uint64(data[16:]),
	}
}

// keyspace is a store with clients.
type keyspace interface {
	// dial makes a connection.
	dial(ctx context.Context) (storeConn, error)
}

type storeConn interface {
	// create makes a key; it returns the slot with which put changes it.
	create(ctx context.Context, key uint64) (slot, error)
	// watch calls f for every put from now on until ctx ends. It calls begun when it has begun.
	watch(ctx context.Context, begun func(), f func(seen)) error
	close()
}

// slot is one key.
type slot interface {
	// put changes it if there was no other change since the last put.
	put(ctx context.Context) error
	// id is the number of the key, count how many puts there were.
	id() uint64
	count() uint64
}

// ours is runtime's store.
type ours struct {
	address string
	tls     *tls.Config
}

type ourConn struct {
	cl *rpc.Client
	st *remote.Store
}

func (o *ours) dial(ctx context.Context) (storeConn, error) {
	cl, err := rpc.Dial(ctx, o.address, rpc.ClientOptions{TLS: o.tls})
	if err != nil {
		return nil, err
	}
	return &ourConn{cl, remote.New(cl)}, nil
}

func (c *ourConn) close() { c.cl.Close() }

type ourSlot struct {
	c    *ourConn
	v    value
	data [valueBytes]byte
	key  uint64
	seq  uint64
}

func (c *ourConn) create(ctx context.Context, key uint64) (slot, error) {
	s := &ourSlot{c: c, key: key}
	s.v.Status.Data = s.data[:]
	stamp(s.data[:], key, 0)
	return s, entity.Create(ctx, c.st, &s.v)
}

func (s *ourSlot) put(ctx context.Context) error {
	stamp(s.data[:], s.key, s.seq+1)
	if err := entity.UpdateStatus(ctx, s.c.st, &s.v); err != nil {
		return err
	}
	s.seq++
	return nil
}

func (s *ourSlot) id() uint64    { return s.key }
func (s *ourSlot) count() uint64 { return s.seq }

func (c *ourConn) watch(ctx context.Context, begun func(), f func(seen)) error {
	w, err := c.st.Watch(ctx, entity.WatchQuery{Kinds: []string{valueKind.Name}})
	if err != nil {
		return err
	}
	defer w.Close()
	begun()
	for {
		events, err := w.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range events {
			if events[i].Type != entity.EventPut {
				continue
			}
			var st valueStatus
			if err := schema.Unmarshal(events[i].Record.Status, &st); err != nil {
				return err
			}
			f(read(st.Data))
		}
	}
}

// etcd is the peer.
type etcd struct {
	address string
	tls     *tls.Config
}

type etcdConn struct{ cl *clientv3.Client }

func (e *etcd) dial(ctx context.Context) (storeConn, error) {
	cl, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + e.address}, TLS: e.tls, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	if _, err := cl.Get(ctx, "/"); err != nil { // connects
		cl.Close()
		return nil, err
	}
	return &etcdConn{cl}, nil
}

func (c *etcdConn) close() { c.cl.Close() }

type etcdSlot struct {
	c    *etcdConn
	name string
	rev  int64
	data [valueBytes]byte
	key  uint64
	seq  uint64
}

func (c *etcdConn) create(ctx context.Context, key uint64) (slot, error) {
	s := &etcdSlot{c: c, key: key, name: fmt.Sprintf("/bench/%08d", key)}
	stamp(s.data[:], key, 0)
	r, err := c.cl.Put(ctx, s.name, string(s.data[:]))
	if err != nil {
		return nil, err
	}
	s.rev = r.Header.Revision
	return s, nil
}

func (s *etcdSlot) put(ctx context.Context) error {
	stamp(s.data[:], s.key, s.seq+1)
	r, err := s.c.cl.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(s.name), "=", s.rev)).
		Then(clientv3.OpPut(s.name, string(s.data[:]))).Commit()
	if err != nil {
		return err
	}
	if !r.Succeeded {
		return fmt.Errorf("etcd: %s was changed by another", s.name)
	}
	s.rev = r.Header.Revision
	s.seq++
	return nil
}

func (s *etcdSlot) id() uint64    { return s.key }
func (s *etcdSlot) count() uint64 { return s.seq }

func (c *etcdConn) watch(ctx context.Context, begun func(), f func(seen)) error {
	for resp := range c.cl.Watch(ctx, "/bench/", clientv3.WithPrefix(), clientv3.WithCreatedNotify()) {
		if err := resp.Err(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if resp.Created {
			begun()
			continue
		}
		for _, e := range resp.Events {
			f(read(e.Kv.Value))
		}
	}
	return nil
}
