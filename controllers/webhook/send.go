package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/webhooks"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/retryafter"
	"miren.dev/runtime/pkg/version"
)

// answer is the outcome of an attempt.
type answer struct {
	accepted bool
	gone     bool   // the receiver wants nothing any more
	status   *int64 // of HTTP; nil: no answer
	message  string // what went wrong
	after    time.Duration
}

// outcome describes it for people.
func (a answer) outcome() string {
	if a.status != nil {
		return strings.TrimSpace(fmt.Sprintf("%d %s", *a.status, http.StatusText(int(*a.status))))
	}
	return a.message
}

// failed returns the answer of an attempt without one from the receiver.
func failed(err error) answer {
	var u *url.Error
	if errors.As(err, &u) { // without the URL, which may have a token
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) { // without addresses, which may be those of private names
		err = op.Err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		err = fmt.Errorf("the name %s is not resolved", dns.Name)
		if dns.IsNotFound {
			err = fmt.Errorf("the name %s does not exist", dns.Name)
		}
	}
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "")
	}
	return answer{message: text}
}

// send makes the request of a delivery. Any status of the class 2xx accepts it.
func (s *Sender) send(ctx context.Context, w *webhook.Webhook, d *webhook.WebhookDelivery) answer {
	now := time.Now()
	body := []byte(d.Spec.Payload)
	secrets, err := s.Webhooks.Secrets(w, now)
	if err != nil {
		return failed(errs.New(errs.Internal, "the secret of the webhook cannot be opened"))
	}
	signature, err := webhooks.Sign(secrets, d.Spec.Event, now, body)
	if err != nil {
		return failed(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.Spec.URL, strings.NewReader(d.Spec.Payload))
	if err != nil {
		return failed(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "miren-runtime/"+version.Get().Version)
	req.Header.Set("webhook-id", d.Spec.Event)
	req.Header.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	req.Header.Set("webhook-signature", signature)
	resp, err := s.client.Do(req)
	if err != nil {
		return failed(err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)) // so that the connection can be used again
	_ = resp.Body.Close()
	code := int64(resp.StatusCode)
	a := answer{status: &code, accepted: code >= 200 && code < 300, gone: code == http.StatusGone}
	if !a.accepted {
		a.message = "the receiver answered " + a.outcome()
		a.after = retryafter.Parse(resp.Header.Get("Retry-After"), now, webhook.MaxRetryAfter)
	}
	if code >= 300 && code < 400 {
		a.message += ": redirects are not followed"
	}
	return a
}

// backoff returns the wait after a number of attempts.
func (s *Sender) backoff(attempts int64) time.Duration {
	d := s.FirstRetry
	if d == 0 {
		d = webhook.FirstRetry
	}
	for range attempts - 1 {
		if d = 2 * d; d >= webhook.MaxRetry {
			d = webhook.MaxRetry
			break
		}
	}
	return d - d/10 + rand.N(d/5+1)
}
