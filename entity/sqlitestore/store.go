// Package sqlitestore is the entity store on SQLite, for one server without a
// PostgreSQL. It decides, lists and watches with the same code as
// entity/pgstore (entity/eval, entity/listing, entity/feed, entity/records).
//
// # Limits
//
//   - One process has the store open; another one is refused (a lock beside the
//     file). All servers of an installation with several need PostgreSQL.
//   - The file is on a local file system: the WAL of SQLite needs shared memory.
//   - Writes come one after the other, transactions and history alike, each batch
//     with one sync of the disk.
//   - The file does not shrink; the space of what is dropped is used again.
//   - A copy that is put back into the same file is not recognised: remove the
//     file first, or call NewEpoch.
//
// # Writing
//
// One goroutine collects transactions into batches, another one appends to the
// history (history.go). Each batch is one transaction of SQLite (write.go, load.go)
// on the only connection that writes; database.mu orders them. In WAL mode
// readers and the writer do not wait for each other. With synchronous=FULL the WAL
// is synced before a commit returns, so what is acknowledged survives a loss of
// power. After a sync that failed the store accepts no more writes: whether that
// commit is durable shows when the file is opened again.
//
// # Watching
//
// Every change is made by this process, which feeds its hub. Older ones are read
// from the log.
//
// # Tables
//
// See migrations/. Format of a record: entity/eval/record.go.
//
// # Leases
//
// When a lease expires is kept in memory, so a renewal does not wait for the
// disk. After a start, and after the process was stopped for a while, every lease
// gets its full time again (lease.go).
//
// # Locks
//
// database.mu before leases.mu. The lock of the hub is a leaf.
package sqlitestore

import (
	"context"
	"database/sql"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/feed"
	"miren.dev/runtime/entity/records"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// bg is the context of statements that are not interrupted.
var bg = context.Background()

// Config of a Store. Path and Kinds are required.
type Config struct {
	Path string // of the file; its folder is made
	// NoSync loses what was acknowledged when the machine fails, though not when the
	// process does: for a store that nobody needs afterwards.
	NoSync bool
	Kinds  []*schema.Kind
	// Logger; nil: slog.Default().
	Logger *slog.Logger
	// Readers is how many reads run at a time; 0: 4.
	Readers int
	// RetryFor is how long a write waits for its turn, and a statement for a program
	// that has locked the file, such as the sqlite3 shell, before it fails with
	// unavailable; 0: 10 s.
	RetryFor time.Duration
	// KeepFor is how long the change log is kept for watches that resume; 0:
	// one hour. KeepRevisions bounds it whatever its age; 0: 500,000.
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

// What is acknowledged is durable with syncFull: the WAL is synced at every commit.
const (
	syncFull = "full"
	syncOff  = "off"
)

func (c *Config) sync() string {
	if c.NoSync {
		return syncOff
	}
	return syncFull
}

// Scheme begins the URL of a store: sqlite:///PATH.
const Scheme = "sqlite://"

// PathOf returns the path that a URL names. InvalidArgument: it is not absolute.
func PathOf(url string) (string, error) {
	path, ok := strings.CutPrefix(url, Scheme)
	if !ok || !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", errs.New(errs.InvalidArgument, "store URL %q: no absolute path follows %s", url, Scheme).
			WithHint("such as sqlite:///var/lib/miren-runtime/store.db")
	}
	return path, nil
}

// maxWrite is how long one batch should keep others waiting: a deletion that needs
// a quarter of it is applied in parts.
const maxWrite = 10 * time.Second

// Store is an entity.Store and an entity.History on SQLite.
type Store struct {
	cfg     Config
	logger  *slog.Logger
	eval    *eval.Evaluator
	db      *database
	queue   *eval.Queue
	appends *records.Queue
	hub     *feed.Hub
	leases  leases
	metrics *metrics
	last    int64 // time of the last record of the history; the appender's

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

// Open opens the file, migrates it and starts the store's background work, until
// Close. FailedPrecondition: another process has it open, or a newer version of
// the program wrote it.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	cfg.setDefaults()
	s := &Store{cfg: cfg, logger: cfg.Logger, metrics: newMetrics(), closing: make(chan struct{}), batcherDone: make(chan struct{}), appenderDone: make(chan struct{})}
	if s.eval, err = eval.New(eval.Config{Kinds: cfg.Kinds, Logger: cfg.Logger, MaxCascade: cfg.MaxCascade, Attempt: maxWrite}); err != nil {
		return nil, err
	}
	s.hub = feed.New(feed.Config{
		Eval: s.eval, Source: source{s}, MaxEvents: cfg.RingEvents, Woken: s.metrics.wakes.Inc,
		Watching: func(delta int) { s.metrics.watchers.Add(float64(delta)) },
	})
	s.queue = eval.NewQueue(eval.QueueConfig{RetryFor: cfg.RetryFor, CheckClosure: s.checkClosure, Closing: s.closing, Done: s.batcherDone})
	s.appends = records.NewQueue(records.QueueConfig{RetryFor: cfg.RetryFor, Closing: s.closing, Done: s.appenderDone})
	if s.db, err = openDatabase(ctx, cfg.Path, cfg.Readers, cfg.RetryFor, cfg.sync()); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		s.db.close()
		return nil, err
	}
	background, cancel := context.WithCancel(bg)
	s.cancel = cancel
	go s.runBatcher()
	go s.runAppender()
	for _, work := range []func(context.Context){s.expire, s.compact, s.rotate} {
		s.background.Go(func() { work(background) })
	}
	return s, nil
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	def(&c.Readers, 4)
	def(&c.RetryFor, 10*time.Second)
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

// begin migrates the file and reads the store's position, epoch and leases.
func (s *Store) begin(ctx context.Context) error {
	if err := s.db.migrate(); err != nil {
		return mapError(err, "migrate the store")
	}
	if err := s.reindex(); err != nil {
		return err
	}
	if err := s.newEpoch(false); err != nil {
		return err
	}
	return s.loadLeases(ctx)
}

// NewEpoch makes every token that was given out so far invalid: watchers list
// again. Call it after an earlier state was copied into the file.
func (s *Store) NewEpoch(context.Context) error { return s.newEpoch(true) }

// newEpoch begins the hub's history at the position of the file, in a new epoch
// if that is asked for, or if this is another file than before.
func (s *Store) newEpoch(always bool) error {
	var rev int64
	var epoch, origin string
	err := s.db.write(func(w writer) error {
		if err := w.query(sqlWhere, func(r *sql.Rows) error { return r.Scan(&rev, &epoch, &origin) }); err != nil {
			return err
		}
		if epoch != "" && origin == s.db.origin && !always {
			return errRollback
		}
		if epoch != "" {
			s.logger.Warn("this is another copy of the store: beginning a new epoch", "previous", epoch)
		}
		epoch = string(schema.NewID("epoch"))
		_, err := w.exec(`update store set epoch = ?1, origin = ?2`, epoch, s.db.origin)
		return err
	})
	if err != nil {
		return mapError(err, "read the store's position")
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
		s.db.close()
	})
}

// Ping reports whether the file can be read and written.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.db.broken(); err != nil {
		return err
	}
	_, err := source{s}.Position(ctx)
	return err
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

// Get implements entity.Reader.
func (s *Store) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	if _, err := s.eval.Kind(kind); err != nil {
		return schema.Record{}, err
	}
	k := eval.Key{Kind: kind, ID: string(id)}
	if !eval.ValidID.MatchString(k.ID) {
		return schema.Record{}, eval.NotFound(k)
	}
	var raw []byte
	err := s.db.readers.QueryRowContext(ctx, `select record from entity where kind = ?1 and id = ?2`, k.Kind, k.ID).Scan(&raw)
	switch {
	case err == sql.ErrNoRows:
		return schema.Record{}, eval.NotFound(k)
	case err != nil && ctx.Err() != nil:
		return schema.Record{}, eval.ContextError(ctx, "get "+kind)
	case err != nil:
		return schema.Record{}, mapError(err, "get "+kind)
	}
	rec, err := eval.DecodeRecord(raw)
	if err != nil {
		return schema.Record{}, err
	}
	return *rec, nil
}

// now is the time of changes, as precise as it is stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
