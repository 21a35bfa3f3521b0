package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
)

// database is the file of a store: one connection that writes, and some that read.
type database struct {
	lock    *os.File // holds the lock that keeps other processes away
	origin  string   // identity of the file
	one     *sql.DB  // of conn
	readers *sql.DB

	mu     sync.Mutex // guards what follows; it orders all writes
	conn   *sql.Conn
	stmts  map[string]*sql.Stmt
	failed error // an earlier commit may or may not be durable
}

// openDatabase opens the file, which it makes if it is missing, with its folder.
// FailedPrecondition: another process has it open.
func openDatabase(ctx context.Context, path string, readers int, busy time.Duration, sync string) (_ *database, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return nil, errs.New(errs.InvalidArgument, "path of the store: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, errs.New(errs.Unavailable, "folder of the store: %w", err)
	}
	d := &database{stmts: map[string]*sql.Stmt{}}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.lock, err = lockFile(path); err != nil {
		return nil, err
	}
	// The mode of the file is also that of its WAL. SQLite would make it readable
	// for everyone.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "file of the store: %w", err)
	}
	info, err := f.Stat()
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "file of the store: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		d.origin = fmt.Sprintf("%d/%d", st.Dev, st.Ino)
	}
	d.one, err = sql.Open("sqlite", dsn(path, busy, "journal_mode(wal)", "synchronous("+sync+")", "journal_size_limit(67108864)", "cache_size(-16384)"))
	if err != nil {
		return nil, mapError(err, "open the store")
	}
	d.one.SetMaxOpenConns(1)
	if d.conn, err = d.one.Conn(ctx); err != nil {
		return nil, mapError(err, "open the store")
	}
	if d.readers, err = sql.Open("sqlite", dsn(path, busy, "query_only(1)")); err != nil {
		return nil, mapError(err, "open the store")
	}
	d.readers.SetMaxOpenConns(readers)
	d.readers.SetMaxIdleConns(readers)
	return d, nil
}

func dsn(path string, busy time.Duration, pragmas ...string) string {
	v := url.Values{"_pragma": append([]string{fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds())}, pragmas...)}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: v.Encode()}).String()
}

// lockFile takes the lock beside the file of a store. The system releases it when
// the process ends, however it ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "lock of the store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errs.New(errs.FailedPrecondition, "the store %s is open in another process", path).
				WithHint("a store on SQLite belongs to one server; stop the other one, or use PostgreSQL")
		}
		return nil, errs.New(errs.Unavailable, "lock of the store: %w", err)
	}
	return f, nil
}

// close closes what is open. What was acknowledged stays.
func (d *database) close() {
	if d.readers != nil {
		_ = d.readers.Close() // they only read
	}
	for _, st := range d.stmts {
		_ = st.Close() // it goes with its connection
	}
	if d.conn != nil {
		_ = d.conn.Close() // every transaction has ended
	}
	if d.one != nil {
		_ = d.one.Close() // if its checkpoint fails, the next program to open the file makes it
	}
	if d.lock != nil {
		_ = d.lock.Close() // this unlocks
	}
}

// writer is one transaction that writes.
type writer struct{ d *database }

func (w writer) stmt(query string) (*sql.Stmt, error) {
	if st := w.d.stmts[query]; st != nil {
		return st, nil
	}
	st, err := w.d.conn.PrepareContext(bg, query)
	if err == nil {
		w.d.stmts[query] = st
	}
	return st, err
}

func (w writer) exec(query string, args ...any) (sql.Result, error) {
	st, err := w.stmt(query)
	if err != nil {
		return nil, err
	}
	return st.Exec(args...)
}

// query calls row for each row of the result.
func (w writer) query(query string, row func(*sql.Rows) error, args ...any) error {
	st, err := w.stmt(query)
	if err != nil {
		return err
	}
	rows, err := st.Query(args...)
	return eachRow(rows, err, row)
}

func eachRow(rows *sql.Rows, err error, row func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// errRollback makes write undo what its function did, without an error.
var errRollback = errors.New("nothing to write")

// write runs fn in a transaction, and returns when that is durable. If fn returns
// an error, nothing is written. It is not interrupted: it only waits for the disk.
func (d *database) write(fn func(w writer) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failure(); err != nil {
		return err
	}
	if _, err := d.conn.ExecContext(bg, "begin immediate"); err != nil {
		return err
	}
	err := fn(writer{d})
	if err == nil {
		if _, err = d.conn.ExecContext(bg, "commit"); err == nil {
			return nil
		}
		// Only a failed sync may leave a whole commit in the WAL. It would be found
		// by the next program to open the file, unless a later commit is written over
		// it; and a later sync may succeed although this one lost data.
		if code(err) == sqlite3.SQLITE_IOERR_FSYNC {
			d.failed = err
			return eval.UnknownOutcome(err)
		}
	}
	if _, e := d.conn.ExecContext(bg, "rollback"); e != nil && !autocommit(e) {
		d.failed = e
		err = errors.Join(err, e)
	}
	if err == errRollback {
		return nil
	}
	return err
}

// failure is the error of a write after a failed commit; mu is held.
func (d *database) failure() error {
	if d.failed == nil {
		return nil
	}
	return errs.New(errs.Unavailable, "the store accepts no writes since a commit failed: %w", d.failed).
		WithHint("look at the disk, then restart the server")
}

// broken is the error of every write from now on, if there is one.
func (d *database) broken() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure()
}

// autocommit reports whether a rollback failed because SQLite had rolled back by
// itself, as it does after some errors.
func autocommit(err error) bool { return code(err) == sqlite3.SQLITE_ERROR }

func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// read runs fn on one snapshot.
func (d *database) read(ctx context.Context, doing string, fn func(tx *sql.Tx) error) error {
	tx, err := d.readers.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err == nil {
		err = fn(tx)
		_ = tx.Rollback() // it only read
	}
	if err != nil && ctx.Err() != nil {
		return eval.ContextError(ctx, doing)
	}
	return mapError(err, doing)
}

// mapError gives an error of SQLite its class: Corrupt for a file that is not
// sound, Internal for a statement that is wrong, otherwise Unavailable.
func mapError(err error, doing string) error {
	if err == nil {
		return nil
	}
	var classed *errs.Error
	if errors.As(err, &classed) {
		return err
	}
	switch code(err) & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return errs.New(errs.Corrupt, "%s: %w", doing, err)
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_TOOBIG:
		return errs.New(errs.Internal, "%s: %w", doing, err)
	}
	return errs.New(errs.Unavailable, "%s: %w", doing, err)
}
