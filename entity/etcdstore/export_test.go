package etcdstore

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// HoldReplica keeps the replica as it is until release is called.
func (s *Store) HoldReplica() (release func()) {
	s.applying.Lock()
	return s.applying.Unlock
}

// DropLog raises the floor to the newest revision, and drops the log without the
// margin that lists need.
func (s *Store) DropLog(ctx context.Context) error {
	if err := s.Compact(ctx, 0, 0); err != nil {
		return err
	}
	_, rev, _ := s.replica.where()
	for {
		if more, err := s.dropLog(ctx, rev); err != nil || !more {
			return err
		}
	}
}

// Keys counts keys of the store below a name, also when it is closed.
func (s *Store) Keys() func(t *testing.T, address, name string) int64 {
	return func(t *testing.T, address, name string) int64 {
		t.Helper()
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		resp, err := c.Get(t.Context(), s.keys.prefix+name, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return resp.Count
	}
}
