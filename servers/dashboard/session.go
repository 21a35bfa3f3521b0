package dashboard

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
)

const cookieName = "runtime_session"

// maxEnded bounds the sessions that are remembered because somebody logged out of them.
const maxEnded = 16384

// session is what a cookie holds.
type session struct {
	ID      string    `json:"id"`
	Key     string    `json:"key"`
	Begun   time.Time `json:"begun"`
	Expires time.Time `json:"expires"`
}

// sessions seals sessions into cookies and opens them. No session is stored: only
// those that were ended are remembered, until they expire or the server stops.
type sessions struct {
	aead cipher.AEAD
	now  func() time.Time

	mu    sync.Mutex
	ended map[string]time.Time      // ids, with their expiry
	calls map[string]map[*call]bool // of sessions, under way
	since time.Time                 // sessions that began before it have ended
}

// newSessions derives the key of sessions from the server's key of tokens.
func newSessions(key []byte, now func() time.Time) (*sessions, error) {
	aead, err := newCipher(key, "dashboard session")
	if err != nil {
		return nil, err
	}
	return &sessions{aead: aead, now: now, ended: map[string]time.Time{}, calls: map[string]map[*call]bool{}}, nil
}

// newCipher returns a cipher whose key is made of the server's key of tokens for a purpose.
func newCipher(key []byte, purpose string) (cipher.AEAD, error) {
	k, err := hkdf.Key(sha256.New, key, nil, purpose, 32)
	if err != nil {
		return nil, errs.New(errs.Internal, "key of a %s: %w", purpose, err)
	}
	block, err := aes.NewCipher(k)
	if err != nil {
		return nil, errs.New(errs.Internal, "key of a %s: %w", purpose, err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, errs.New(errs.Internal, "key of a %s: %w", purpose, err)
	}
	return aead, nil
}

// seal returns the value of a cookie.
func seal(aead cipher.AEAD, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it has strings and times only
	}
	return base64.RawURLEncoding.EncodeToString(aead.Seal(nil, nil, b, nil))
}

// open reads the value of a cookie into v, and reports whether seal made it.
func open(aead cipher.AEAD, value string, v any) bool {
	b, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		return false
	}
	b, err = aead.Open(nil, nil, b, nil)
	return err == nil && json.Unmarshal(b, v) == nil
}

// make returns a new session for a key, which ends no later than the key; zero: it does not end.
func (s *sessions) make(key string, end time.Time) *session {
	now := s.now()
	x := &session{ID: rand.Text(), Key: key, Begun: now, Expires: now.Add(sessionTime)}
	if !end.IsZero() && end.Before(x.Expires) {
		x.Expires = end
	}
	return x
}

func (s *sessions) seal(x *session) string { return seal(s.aead, x) }

// of returns the session of a request. Unauthenticated without a valid one.
func (s *sessions) of(r *http.Request) (*session, error) {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return nil, errs.New(errs.Unauthenticated, "nobody is logged in")
	}
	var x session
	if !open(s.aead, c.Value, &x) || !s.now().Before(x.Expires) || s.over(&x) {
		return nil, errs.New(errs.Unauthenticated, "the session has ended").WithHint("log in again")
	}
	return &x, nil
}

func (s *sessions) over(x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ended := s.ended[x.ID]
	return ended || x.Begun.Before(s.since)
}

// call is a request of a session; it has a type so that each is another one.
type call struct{ cancel context.CancelFunc }

// during returns a context that ends with a session, and how to release it.
func (s *sessions) during(ctx context.Context, x *session) (context.Context, func()) {
	ctx, cancel := context.WithDeadline(ctx, x.Expires)
	c := &call{cancel}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[x.ID] == nil {
		s.calls[x.ID] = map[*call]bool{}
	}
	s.calls[x.ID][c] = true
	if _, ended := s.ended[x.ID]; ended {
		cancel() // meanwhile
	}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.calls[x.ID], c); len(s.calls[x.ID]) == 0 {
			delete(s.calls, x.ID)
		}
	}
}

// end makes a session invalid, and ends its streams and terminals. If too many are remembered, all sessions end.
func (s *sessions) end(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if len(s.ended) >= maxEnded {
		for id, end := range s.ended {
			if !now.Before(end) {
				delete(s.ended, id)
			}
		}
	}
	if len(s.ended) >= maxEnded {
		clear(s.ended)
		s.since = now
	}
	s.ended[x.ID] = x.Expires
	for c := range s.calls[x.ID] {
		c.cancel()
	}
}
