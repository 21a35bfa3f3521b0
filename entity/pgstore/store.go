// Package pgstore is the entity store on PostgreSQL.
//
// # Writing
//
// Concurrent client transactions are collected into batches, one database
// transaction each (batch.go). It locks the counter row first, which orders
// all writers of all servers, loads what the batch's decisions depend on
// (load.go), decides transaction by transaction in memory on a view of that
// state (entity/eval), and writes the accepted ones together with
// indexes, unique keys, references and the change log (write.go): two round
// trips for most batches, also for a batch of one. Each accepted transaction
// gets the next revision; a rejected one gets none and affects no other. After a
// connection is lost while committing, the batch's tag in the log tells
// whether it was committed (conn.go).
//
// # Watching
//
// A server feeds its own commits to its hub (entity/feed). Its tailer reads the
// commits of other servers from the log (tail.go), woken by NOTIFY and once a
// second.
//
// # Tables
//
// See migrations/. Format of a record: entity/eval/record.go. The log is partitioned by
// revision, partitionSize each. The tables live in the schema "runtime", and
// nothing else may write to them.
//
// # History
//
// Append (history.go) collects concurrent appends into one statement, apart
// from the batcher, so that neither waits for the other. Each stream has a
// partition per day, in UTC by the database's clock; historyrotate.go makes them
// ahead and drops them whole. Each filter of a list (entity/records) has an index.
//
// # Leases
//
// A lease lapses when a server's expirer removes it, at the earliest at its
// expiry by the database's clock; see lease.go for what happens when the
// database or all servers were away. Lapsed leases have their turn one after the
// other, so those that cannot end do not hold up the rest.
//
// # Deadlines
//
// Each attempt at the database has one (Config.Attempt), whatever the caller's
// context says. An operation fails as unavailable at the latest after RetryFor,
// two attempts and the time in the queue.
//
// # Locks
//
// In the database: the counter row before lease rows before everything else.
// In memory: the lock of the hub is a leaf.
package pgstore

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/feed"
	"miren.dev/runtime/entity/records"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Config of a Store. URL and Kinds are required.
type Config struct {
	URL   string // postgres://...
	Kinds []*schema.Kind
	// Logger; nil: slog.Default().
	Logger *slog.Logger
	// Connections for reading; 0: 6. Writer and listener use one more each.
	Connections int
	// RetryFor is how long an operation waits for a database that cannot be
	// reached before it fails with unavailable; 0: 10 s.
	RetryFor time.Duration
	// Attempt is how long the database may take to answer before an attempt is
	// given up; 0: 10 s. An operation fails at the latest after RetryFor, two
	// attempts and the time in the queue, which is bounded by RetryFor too.
	Attempt time.Duration
	// KeepFor is how long the change log is kept for watches that resume; 0:
	// one hour. KeepRevisions bounds it whatever its age; 0: 500,000. Whole
	// partitions of 65,536 revisions are dropped, so more than this is kept.
	KeepFor       time.Duration
	KeepRevisions int64
	// KeepHistory is how long records of each stream of the history are kept; a
	// stream that it does not name: records.DefaultKeep.
	KeepHistory map[entity.Stream]time.Duration
	// RingEvents is how many changes of a kind are kept in memory, which is
	// how far a watcher may fall behind; 0: 8192.
	RingEvents int
	// MaxCascade is how many entities a deletion changes in one transaction,
	// besides those that the transaction names; 0: 1000.
	MaxCascade int
	// ExpireInterval is the time between two checks for lapsed leases; 0: 500
	// ms.
	ExpireInterval time.Duration
}

// Store is an entity.Store on PostgreSQL.
type Store struct {
	cfg        Config
	logger     *slog.Logger
	eval       *eval.Evaluator
	connConfig *pgx.ConnConfig
	pool       *pgxpool.Pool
	queue      *eval.Queue
	batcher    *batcher
	appends    *records.Queue
	hub        *feed.Hub
	metrics    *metrics

	closing      chan struct{} // closed first by Close
	batcherDone  chan struct{}
	appenderDone chan struct{}
	cancel       context.CancelFunc // cancels the background work
	background   sync.WaitGroup
	closeOnce    sync.Once
}

var _ entity.Store = (*Store)(nil)

// Open connects to the database, migrates it and starts the store's
// background work, until Close.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg.setDefaults()
	s := &Store{
		cfg: cfg, logger: cfg.Logger,
		metrics: newMetrics(),
		closing: make(chan struct{}), batcherDone: make(chan struct{}), appenderDone: make(chan struct{}),
	}
	s.batcher = &batcher{s: s}
	var err error
	if s.eval, err = eval.New(eval.Config{Kinds: cfg.Kinds, Logger: cfg.Logger, MaxCascade: cfg.MaxCascade, Attempt: cfg.Attempt}); err != nil {
		return nil, err
	}
	s.hub = feed.New(feed.Config{
		Eval: s.eval, Source: source{s}, MaxEvents: cfg.RingEvents, StaleAfter: staleAfter, Woken: s.metrics.wakes.Inc,
		Watching: func(delta int) { s.metrics.watchers.Add(float64(delta)) },
	})
	s.queue = eval.NewQueue(eval.QueueConfig{RetryFor: cfg.RetryFor, CheckClosure: s.checkClosure, Closing: s.closing, Done: s.batcherDone})
	s.appends = records.NewQueue(records.QueueConfig{RetryFor: cfg.RetryFor, Closing: s.closing, Done: s.appenderDone})
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "store URL: %w", err)
	}
	setParams(pc.ConnConfig)
	pc.ConnConfig.ConnectTimeout = min(connectTimeout, cfg.Attempt)
	pc.ConnConfig.RuntimeParams["jit"] = "off"
	pc.MaxConns, pc.MaxConnIdleTime = int32(cfg.Connections), time.Minute
	s.connConfig = pc.ConnConfig
	if err := Migrate(ctx, cfg.URL); err != nil {
		return nil, err
	}
	if s.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), pc); err != nil {
		return nil, mapError(err, "connect to the store")
	}
	if err := s.begin(ctx); err != nil {
		s.pool.Close()
		return nil, err
	}
	bg, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go s.batcher.run()
	go (&appender{s: s}).run()
	for _, work := range []func(context.Context){s.tail, s.expire, s.compact, s.rotate} {
		s.background.Go(func() { work(bg) })
	}
	return s, nil
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	def(&c.Connections, 6)
	def(&c.RetryFor, 10*time.Second)
	def(&c.Attempt, 10*time.Second)
	def(&c.KeepFor, time.Hour)
	def(&c.KeepRevisions, 500_000)
	def(&c.MaxCascade, 1000)
	def(&c.ExpireInterval, 500*time.Millisecond)
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// begin reads the store's position and epoch.
func (s *Store) begin(ctx context.Context) error {
	var rev int64
	var epoch, origin, server string
	if err := s.pool.QueryRow(ctx, sqlWhere).Scan(&rev, &epoch, &origin, &server); err != nil {
		return mapError(err, "read the store's position")
	}
	if epoch == "" || origin != server {
		var err error
		if epoch, err = s.newEpoch(ctx, epoch); err != nil {
			return err
		}
		if err := s.pool.QueryRow(ctx, sqlWhere).Scan(&rev, &epoch, &origin, &server); err != nil {
			return mapError(err, "read the store's position")
		}
	}
	if err := s.makePartition(ctx, rev/partitionSize); err != nil {
		return err
	}
	if err := s.reindex(ctx); err != nil {
		return err
	}
	s.hub.Begin(epoch, schema.Revision(rev))
	return nil
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
		s.pool.Close()
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

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
	defer cancel()
	return callError(ctx, s.pool.Ping(attempt), "ask the store")
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
		var raw []byte
		if err := s.pool.QueryRow(ctx, `select record from entity where kind = $1 and id = $2`, k.Kind, k.ID).Scan(&raw); err != nil {
			if err == pgx.ErrNoRows {
				return nil, eval.NotFound(k)
			}
			return nil, err
		}
		return eval.DecodeRecord(raw)
	})
	if err != nil {
		return schema.Record{}, err
	}
	return *rec, nil
}

// Txn implements entity.Store.
func (s *Store) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
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
