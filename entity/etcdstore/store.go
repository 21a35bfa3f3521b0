// Package etcdstore is the entity store on an etcd cluster, for any number of
// servers. It decides and watches with the same code as entity/pgstore
// (entity/eval, entity/feed, entity/listing, entity/records).
//
// # Keys
//
// All begin with the prefix of the URL (keys.go). "state" has the revision and the
// epoch of the store; every transaction that changes an entity writes it. "e/" has
// the entities, "log/" the changes of each revision, "req/" the revisions of
// requests with an id. There are no keys for indexes, unique values and
// references, since etcd accepts few operations in a transaction.
//
// # Replica
//
// Each server has all entities in memory (replica.go), with their indexes, at one
// revision. It loads them when it starts, and then applies its own commits and,
// from the log, those of other servers (tail.go). A list first asks etcd for the
// newest revision and waits until the replica has it.
//
// # Writing
//
// One goroutine collects transactions into batches (commit.go), decides about them
// on the replica, and commits the result in one transaction of etcd, on condition
// that "state" was not modified since. If it was, the replica is brought up to date
// and the batch is decided again. An attempt without an answer is repeated: either
// it succeeds, or its condition fails and the log tells whether the first one did.
//
// # Limits
//
// etcd bounds a transaction to 128 operations and 1.5 MiB. What exceeds that is
// refused as invalid. A batch that does is committed in smaller ones, and a large
// deletion in the parts of entity/eval.
//
// # Leases
//
// A lease has two keys. "lease/" says that it exists; "alive/" is bound to a lease
// of etcd, which removes it when nobody renews. The expirer of any server then
// deletes the entities (lease.go).
//
// # Locks
//
// Store.applying before replica.mu before the lock of the hub.
package etcdstore

import (
	"context"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/feed"
	"miren.dev/runtime/entity/records"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Config of a Store. URL and Kinds are required.
type Config struct {
	URL   string // see ParseURL
	Kinds []*schema.Kind
	// Logger; nil: slog.Default().
	Logger *slog.Logger
	// RetryFor is how long an operation waits for a cluster that cannot be
	// reached before it fails with unavailable; 0: 10 s.
	RetryFor time.Duration
	// Attempt is how long the cluster may take to answer before an attempt is
	// given up; 0: 5 s.
	Attempt time.Duration
	// KeepFor is how long the change log is kept for watches that resume; 0:
	// one hour. KeepRevisions bounds it whatever its age; 0: 100,000.
	KeepFor       time.Duration
	KeepRevisions int64
	// KeepHistory is how long records of each stream of the history are kept; a
	// stream that it does not name: records.DefaultKeep.
	KeepHistory map[entity.Stream]time.Duration
	// RingEvents is how many changes of a kind are kept in memory, which is
	// how far a watcher may fall behind; 0: 8192.
	RingEvents int
	// MaxCascade is how many entities a deletion changes in one transaction,
	// besides those that the transaction names; 0: half of the
	// operations that etcd accepts.
	MaxCascade int
	// ExpireInterval is the time between two checks for lapsed leases; 0: 500
	// ms.
	ExpireInterval time.Duration
	// DialOptions are more options of the connections, such as interceptors of
	// tests.
	DialOptions []grpc.DialOption
}

// Store is an entity.Store and an entity.History on etcd.
type Store struct {
	cfg     Config
	limits  Limits
	keys    keys
	logger  *slog.Logger
	eval    *eval.Evaluator
	client  *clientv3.Client
	queue   *eval.Queue
	appends *records.Queue
	hub     *feed.Hub
	looked  looked
	metrics *metrics

	// applying is held while the replica is changed, and by the batcher from a
	// decision to its commit.
	applying sync.Mutex
	replica  *replica

	closing      chan struct{} // closed first by Close
	batcherDone  chan struct{}
	appenderDone chan struct{}
	cancel       context.CancelFunc // cancels the background work
	background   sync.WaitGroup
	closeOnce    sync.Once
}

var (
	_ entity.Store   = (*Store)(nil)
	_ entity.History = (*Store)(nil)
)

// Open connects to the cluster, loads the entities and starts the store's
// background work, until Close. Errors: InvalidArgument, Unavailable,
// FailedPrecondition: a newer version of the program wrote the store, or a copy into
// it did not end.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	u, err := ParseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	cfg.setDefaults(u.Limits)
	s := &Store{
		cfg: cfg, limits: u.Limits, keys: keys{u.Prefix}, logger: cfg.Logger, metrics: newMetrics(),
		closing: make(chan struct{}), batcherDone: make(chan struct{}), appenderDone: make(chan struct{}),
	}
	s.eval, err = eval.New(eval.Config{
		Kinds: cfg.Kinds, Logger: cfg.Logger, MaxCascade: cfg.MaxCascade, MaxCascadeBytes: u.Limits.recordBytes(), Attempt: cfg.Attempt,
	})
	if err != nil {
		return nil, err
	}
	s.replica = newReplica(s.eval)
	s.hub = feed.New(feed.Config{
		Eval: s.eval, Source: source{s}, MaxEvents: cfg.RingEvents, StaleAfter: staleAfter, Woken: s.metrics.wakes.Inc,
		Watching: func(delta int) { s.metrics.watchers.Add(float64(delta)) },
	})
	s.queue = eval.NewQueue(eval.QueueConfig{RetryFor: cfg.RetryFor, CheckClosure: s.checkClosure, Closing: s.closing, Done: s.batcherDone})
	s.appends = records.NewQueue(records.QueueConfig{RetryFor: cfg.RetryFor, Closing: s.closing, Done: s.appenderDone})
	if s.client, err = u.dial(cfg.Attempt, cfg.DialOptions...); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		_ = s.client.Close() // nothing was written on it
		return nil, err
	}
	background, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go s.runBatcher()
	go s.runAppender()
	for _, work := range []func(context.Context){s.tail, s.expire, s.compact, s.rotate} {
		s.background.Go(func() { work(background) })
	}
	return s, nil
}

func (t *Target) dial(timeout time.Duration, options ...grpc.DialOption) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: t.Endpoints, TLS: t.TLS, Username: t.Username, Password: t.Password, DialTimeout: timeout, Logger: zap.NewNop(),
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		MaxCallSendMsgSize: 2 * t.Limits.RequestBytes, DialOptions: options,
	})
	return c, mapError(err, "connect to the store")
}

func (c *Config) setDefaults(l Limits) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	def(&c.RetryFor, 10*time.Second)
	def(&c.Attempt, 5*time.Second)
	def(&c.KeepFor, time.Hour)
	def(&c.KeepRevisions, 100_000)
	def(&c.MaxCascade, l.Ops/2)
	def(&c.ExpireInterval, 500*time.Millisecond)
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Close ends the background work and every watch. Acknowledged writes stay.
func (s *Store) Close() {
	s.closeOnce.Do(func() {
		close(s.closing)
		<-s.batcherDone
		<-s.appenderDone
		s.cancel()
		s.background.Wait()
		s.hub.Close()
		_ = s.client.Close() // every write has ended
	})
}

func (s *Store) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// Ping reports whether the cluster answers.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
	defer cancel()
	_, err := s.client.Get(ctx, s.keys.state())
	return mapError(err, "ask the store")
}

// Txn implements entity.Store.
func (s *Store) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	for i := range req.Ops {
		r := &req.Ops[i].Record
		if n, most := len(r.Spec)+len(r.Status), s.limits.recordBytes(); n > most {
			return entity.TxnResult{}, errs.New(errs.InvalidArgument, "%s %s has %d bytes; at most %d fit a request of etcd, with its log", r.Kind, r.ID, n, most).
				With("kind", r.Kind).With("id", string(r.ID)).WithHint(limitHint)
		}
	}
	t, err := s.eval.Prepare(req)
	if err != nil {
		return entity.TxnResult{}, err
	}
	return s.queue.Submit(ctx, t)
}

// Watch implements entity.Reader.
func (s *Store) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	return s.hub.Watch(ctx, q)
}

// Get implements entity.Reader.
func (s *Store) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	if _, err := s.eval.Kind(kind); err != nil {
		return schema.Record{}, err
	}
	k := eval.Key{Kind: kind, ID: string(id)}
	if !eval.ValidID.MatchString(k.ID) {
		return schema.Record{}, eval.NotFound(k)
	}
	rec, err := retryRead(ctx, s, "get "+kind, func(ctx context.Context) (*schema.Record, error) {
		resp, err := s.client.Get(ctx, s.keys.entity(k))
		if err != nil {
			return nil, err
		}
		if len(resp.Kvs) == 0 {
			return nil, eval.NotFound(k)
		}
		var e storedEntity
		if err := decode(resp.Kvs[0], &e); err != nil {
			return nil, err
		}
		return eval.DecodeRecord(e.Record)
	})
	if err != nil {
		return schema.Record{}, err
	}
	return *rec, nil
}

// now is the time of changes, as precise as it is stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
