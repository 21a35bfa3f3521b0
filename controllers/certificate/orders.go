package certificate

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/certificates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

const (
	workers     = 4
	maxMessage  = 1000        // bytes
	stopTimeout = time.Second // of the writes after the server was asked to stop
	// recordTimeout bounds the writes after an attempt.
	recordTimeout = 10 * time.Second
	// cleanupTimeout bounds the removal of the DNS records of an attempt, in between.
	cleanupTimeout = 30 * time.Second
	// takeOver is the time after the longest attempt after which another server takes
	// an order over: longer than all of these.
	takeOver = time.Minute
	// limited is the pause if the authority asks for one and does not say how long.
	limited = time.Hour
)

// Config says where and how certificates are ordered: the section acme of the
// configuration.
type Config struct {
	Directory  string // "": nowhere
	Email      string
	CAFile     string
	Challenges []string // nil: http-01 and tls-alpn-01
}

// DNS sets TXT records.
type DNS interface {
	Present(ctx context.Context, name, value string) error
	Cleanup(ctx context.Context, name, value string) error
}

// Ingress says when the ingress of this server knows a revision of the store.
type Ingress interface {
	Synced(ctx context.Context, revision schema.Revision) error
}

// Orders orders certificates.
type Orders struct {
	Store        entity.Store
	Certificates *certificates.Service
	Sealer       *schema.Sealer
	Config       Config
	DNS          DNS           // nil: no dns-01
	Ingress      Ingress       // nil: this server has none, others do
	Server       id.Node       // this server: of the servers of a store one has an order
	FirstRetry   time.Duration // 0: certificate.FirstRetry
	CleanupTime  time.Duration // bounds the removal of the DNS records of an attempt; 0: cleanupTimeout
	Lost         time.Duration // time after which another server takes an order over; 0: that of the longest attempt, and takeOver
	Logger       *slog.Logger

	acct account

	mu     sync.Mutex
	paused time.Time // the authority takes nothing before; guarded by mu
}

// Controller describes it to the controller runtime.
func (r *Orders) Controller() kit.Controller {
	return kit.Controller{
		Name: "certificate-order", Kind: certificate.CertificateOrderKind, Reconcile: r.Reconcile, Workers: workers,
		Deleted: kit.Last(r.deleted),
		Watches: []kit.Source{kit.Map(func(c *certificate.Certificate) []id.CertificateOrder { return kit.Key(c.Spec.Order) })},
		Access: kit.Access{
			Reads:   []*schema.Kind{certificate.AcmeAccountKind},
			Creates: []*schema.Kind{certificate.AcmeAccountKind, certificate.CertificateKind},
			Owns:    kit.Fields(certificate.CertificateOrderKind, "status"),
			Shares: []kit.Share{{
				Field: kit.Field{Kind: certificate.CertificateKind, Path: "spec"}, Owner: "api", Why: "to renew a certificate that it ordered",
				When: func(before, _ schema.Object) bool { return before.(*certificate.Certificate).Spec.Order != "" },
			}},
		},
	}
}

// Reconcile takes one order on, and returns after how long to look again.
func (r *Orders) Reconcile(ctx context.Context, key schema.ID) (time.Duration, error) {
	o, err := entity.Get[certificate.CertificateOrder](ctx, r.Store, key)
	if err != nil || r.Config.Directory == "" {
		return 0, ignoreGone(err)
	}
	now, st := time.Now(), &o.Status
	asked := o.Spec.Requests != st.Requests
	if st.Phase == certificate.OrderPhaseIssued && !asked && st.Directory == r.Config.Directory {
		c, err := r.Certificates.OfOrder(ctx, o)
		if err != nil {
			return 0, err
		}
		if wait := timeOf(st.RenewAt).Sub(now); c != nil && wait > 0 {
			return wait, nil
		}
	}
	if strings.HasPrefix(o.Spec.Host, "*.") && r.DNS == nil {
		return 0, r.refuse(ctx, o)
	}
	if wait := timeOf(st.ServerUntil).Sub(now); wait > 0 && st.Server != string(r.Server) {
		return wait, nil // another server has it; what it writes causes the next look
	}
	if wait := timeOf(st.NextAttempt).Sub(now); wait > 0 && !asked {
		return wait, nil
	}
	if wait := r.pause().Sub(now); wait > 0 {
		return wait, nil
	}
	return 0, r.work(ctx, o)
}

// refuse records that a wildcard cannot be ordered.
func (r *Orders) refuse(ctx context.Context, o *certificate.CertificateOrder) error {
	const why = "a wildcard needs dns-01, for which this server has no acme.dns_command"
	if o.Status.Phase == certificate.OrderPhaseRefused && o.Status.Message == why {
		return nil
	}
	o.Status.Phase, o.Status.Message, o.Status.Requests = certificate.OrderPhaseRefused, why, o.Spec.Requests
	return ignoreGone(r.write(ctx, "refuse", o))
}

// work claims an order, attempts it, and records the outcome.
func (r *Orders) work(ctx context.Context, o *certificate.CertificateOrder) error {
	st := &o.Status
	now := timestamp(time.Now())
	until := timestamp(now.Add(r.lost()))
	st.Server, st.ServerUntil, st.LastAttempt, st.NextAttempt = string(r.Server), &until, &now, nil
	st.Phase, st.Requests = certificate.OrderPhaseOrdering, o.Spec.Requests
	if err := r.write(ctx, "claim", o); err != nil {
		return ignoreGone(err)
	}
	limit, cancel := context.WithTimeout(ctx, certificate.AttemptTimeout)
	chain, key, err := r.attempt(limit, o)
	cancel()
	if ctx.Err() != nil {
		return nil // the server stops; the next one, or this one when it is back, continues
	}
	var made *certificate.Certificate
	if err == nil {
		after(ctx, recordTimeout, func(ctx context.Context) {
			err = r.put(ctx, "issue", func() error {
				made, err = r.Certificates.Issue(ctx, o, chain, key)
				return err
			})
		})
	}
	if err != nil && outOfReach(err) {
		return err // of the store: what the order has come to is known there, and it continues
	}
	after(ctx, cmp.Or(r.CleanupTime, cleanupTimeout), func(ctx context.Context) { r.cleanUp(ctx, o) })
	st.Server, st.ServerUntil, st.Challenges = "", nil, nil
	if err != nil {
		r.failed(o, err)
	} else {
		renew := timestamp(renewAt(made.Spec.NotBefore, made.Spec.NotAfter))
		st.Phase, st.Attempts, st.Message, st.RenewAt, st.URL, st.Key = certificate.OrderPhaseIssued, 0, "", &renew, "", nil
		r.Logger.Info("a certificate was issued", "host", o.Spec.Host, "expires", made.Spec.NotAfter)
	}
	after(ctx, recordTimeout, func(ctx context.Context) { err = ignoreGone(r.write(ctx, "outcome", o)) })
	return err
}

// after calls f with a context that lasts as long as limit, and stopTimeout once the server
// stops, which is the end of ctx.
func after(ctx context.Context, limit time.Duration, f func(context.Context)) {
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(stopTimeout, cancel) })()
	f(bound)
}

// failed notes a failed attempt.
func (r *Orders) failed(o *certificate.CertificateOrder, err error) {
	st := &o.Status
	st.Attempts++
	st.Phase = certificate.OrderPhaseWaiting
	st.Message = text(err)
	wait := r.wait(st.Attempts)
	if d, ok := rateLimit(err); ok {
		wait = max(wait, d)
		r.mu.Lock()
		if until := time.Now().Add(d); until.After(r.paused) {
			r.paused = until
		}
		r.mu.Unlock()
	}
	next := timestamp(time.Now().Add(wait))
	st.NextAttempt = &next
	if refused(err) {
		st.URL, st.Key = "", nil // the next attempt is a new order
	}
	r.Logger.Warn("a certificate was not issued", "host", o.Spec.Host, "error", err, "retry_in", wait)
}

// pause returns the time before which the authority takes nothing.
func (r *Orders) pause() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

// refused reports whether the authority said no, so that an order cannot be
// continued. Otherwise it was not reached, or it failed itself.
func refused(err error) bool {
	var a *acme.AuthorizationError
	var o *acme.OrderError
	var e *acme.Error
	if errors.As(err, &e) {
		if _, limit := acme.RateLimit(e); limit {
			return false
		}
		return e.StatusCode >= 400 && e.StatusCode < 500
	}
	return errors.As(err, &a) || errors.As(err, &o) || errs.Is(err, errs.InvalidArgument) || errs.Is(err, errs.FailedPrecondition)
}

// rateLimit returns how long the authority asks to wait.
func rateLimit(err error) (time.Duration, bool) {
	var e *acme.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	d, ok := acme.RateLimit(e)
	if ok && d <= 0 {
		d = limited
	}
	return min(d, certificate.MaxRetry), ok
}

// text is an error for people.
func text(err error) string {
	s := strings.ToValidUTF8(strings.Join(strings.Fields(err.Error()), " "), "\uFFFD")
	if errors.Is(err, context.DeadlineExceeded) {
		s = "the authority did not finish within " + certificate.AttemptTimeout.String() + ": " + s
	}
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "")
	}
	return s
}

// wait returns the wait after a number of attempts.
func (r *Orders) wait(attempts int64) time.Duration {
	d := r.FirstRetry
	if d == 0 {
		d = certificate.FirstRetry
	}
	for range attempts - 1 {
		if d = 2 * d; d >= certificate.MaxRetry {
			d = certificate.MaxRetry
			break
		}
	}
	return d - d/10 + rand.N(d/5+1)
}

// renewAt is the time at which a certificate is ordered again: when a third of its
// life is left, and up to a tenth of it earlier, so that those of one time spread.
func renewAt(from, to time.Time) time.Time {
	life := to.Sub(from)
	return to.Add(-life/3 - rand.N(life/10+1))
}

func (r *Orders) lost() time.Duration {
	if r.Lost > 0 {
		return r.Lost
	}
	return certificate.AttemptTimeout + takeOver
}

// write writes the status of an order; name is that of the fault point.
func (r *Orders) write(ctx context.Context, name string, o *certificate.CertificateOrder) error {
	return r.put(ctx, name, func() error { return entity.UpdateStatus(ctx, r.Store, o) })
}

// put writes, between the fault points of a name, and repeats that while the store is
// unavailable.
func (r *Orders) put(ctx context.Context, name string, write func() error) error {
	fault.Point("certificate", name, fault.Before)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := write()
		if !errs.Is(err, errs.Unavailable) || ctx.Err() != nil {
			if err == nil {
				fault.Point("certificate", name, fault.After)
			}
			return storeError(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// unwritten is an error of the store, so that it is told from those of the
// authority.
type unwritten struct{ error }

func (u unwritten) Unwrap() error { return u.error }

func storeError(err error) error {
	if errs.Is(err, errs.Unavailable) || errs.Is(err, errs.Conflict) || errs.Is(err, errs.NotFound) {
		return unwritten{err}
	}
	return err
}

// outOfReach reports whether the store refused a write, or did not answer.
func outOfReach(err error) bool {
	var u unwritten
	return errors.As(err, &u)
}

func ignoreGone(err error) error {
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// timestamp is a time as the store keeps it.
func timestamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
