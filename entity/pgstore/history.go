package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/records"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

var _ entity.History = (*Store)(nil)

// maxRepairs bounds how often a batch is tried again at once after what it
// lacked was made: today's partition, the row of its writer.
const maxRepairs = 10

// appender is the one writer of the history of a Store. Only its own goroutine
// touches it.
type appender struct {
	s *Store
	// id and seq number the batches in the table history_writer. A batch is applied
	// only after its predecessor, so one that is repeated because its outcome was
	// lost is applied once, however late the database carries out the first attempt.
	id  string
	seq int64
}

// Append implements entity.History.
func (s *Store) Append(ctx context.Context, list ...entity.HistoryRecord) error {
	return s.appends.Append(ctx, list)
}

// run appends what is queued until the store is closing.
func (a *appender) run() {
	defer close(a.s.appenderDone)
	for {
		batch := a.s.appends.Collect()
		if batch == nil {
			return
		}
		if len(batch) == 0 {
			continue
		}
		err := a.write(batch)
		for _, x := range batch {
			x.Finish(err)
		}
	}
}

// write makes a batch durable, trying again while the database cannot be
// reached and there is time.
func (a *appender) write(batch []*records.Appending) error {
	cols := records.Columns(batch)
	began, pause := time.Now(), retryPause
	unknown := false
	if a.id != "" {
		a.seq++
	}
	for repairs := 0; ; {
		done, sent, err := a.attempt(cols)
		if done {
			a.s.metrics.appended(len(cols[0]), time.Since(began))
			return nil
		}
		if err == nil && repairs < maxRepairs {
			repairs++
			continue
		}
		if err == nil {
			err = errs.New(errs.Internal, "the history cannot be appended to: its tables change all the time")
		}
		unknown = unknown || sent
		if !errs.Is(err, errs.Unavailable) || time.Since(began) > a.s.cfg.RetryFor || a.s.isClosing() {
			// A statement that is still under way must not count for the next batch.
			a.id, a.seq = "", 0
			if unknown {
				return eval.UnknownOutcome(err)
			}
			return err
		}
		select {
		case <-a.s.closing:
		case <-time.After(pause):
		}
		pause = min(2*pause, maxRetryPause)
	}
}

// attempt tries to append a batch once. sent says that the database may have
// done it although there is an error. Neither done nor an error: try again, what
// it lacked is there now.
func (a *appender) attempt(cols [10][]string) (done, sent bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.s.cfg.Attempt)
	defer cancel()
	if a.id == "" {
		id := string(schema.NewID("writer"))
		if _, err := a.s.pool.Exec(ctx, `insert into history_writer (id, seq) values ($1, 0)`, id); err != nil {
			return false, false, mapError(err, "append to the history")
		}
		a.id, a.seq = id, 1
	}
	args := []any{a.id, a.seq}
	for _, c := range cols {
		args = append(args, c)
	}
	var n int
	var have *int64
	err = a.s.pool.QueryRow(ctx, sqlAppend, args...).Scan(&n, &have)
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "23514": // no partition for today
		return false, false, a.s.makeHistory(ctx)
	case err != nil:
		refused := errors.As(err, &pg) && pg.Severity == "ERROR"
		return false, !refused && !pgconn.SafeToRetry(err), mapError(err, "append to the history")
	case n > 0 || have != nil && *have >= a.seq:
		return true, false, nil
	case have == nil:
		a.id = "" // the row was removed: begin anew
	}
	return false, false, nil
}

// sqlAppend appends a batch if it is the next of its writer. The times of its
// records are a microsecond apart, which keeps their order. It returns how many
// were appended, and the number of the writer's last batch.
const sqlAppend = `with w as (
		update history_writer set seq = $2, at = clock_timestamp() where id = $1 and seq = $2::bigint - 1 returning 1
	), added as (
		insert into history (stream, at, id, project, actor, subject_kind, subject_id, action, outcome, request, detail)
		select r.stream, statement_timestamp() + r.n * interval '1 microsecond', r.id, r.project, r.actor, r.subject_kind, r.subject_id,
			r.action, r.outcome, r.request, nullif(r.detail, '')
		from w, unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[])
			with ordinality as r(stream, id, project, actor, subject_kind, subject_id, action, outcome, request, detail, n)
		returning 1
	)
	select (select count(*) from added), (select seq from history_writer where id = $1)`
