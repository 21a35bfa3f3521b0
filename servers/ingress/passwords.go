package ingress

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/bcrypt"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Password is a user of a route.
type Password struct {
	Route schema.ID `json:"route"`
	User  string    `json:"user"`
	Hash  string    `json:"hash"` // by bcrypt
}

const (
	passwordsMagic = "runtime-ingress-passwords 1 "
	// hashers is how many passwords are hashed at a time, which takes a tenth of a
	// second of a CPU each, and hashQueue how many more wait.
	hashers   = 2
	hashQueue = 50
	// maxKnown bounds the passwords that were found right and are not hashed again.
	maxKnown = 10_000
)

// noUser is what a password of an unknown user is compared with, so that the time
// does not tell who is one.
var noUser = sync.OnceValue(func() []byte {
	h, _ := bcrypt.GenerateFromPassword([]byte("nobody"), bcrypt.DefaultCost) // fails for long passwords only
	return h
})

type userKey struct {
	route schema.ID
	user  string
}

// passwords has the users of routes, which come from Config.Passwords.
type passwords struct {
	asker[Password]
	set   atomic.Pointer[map[userKey]string] // the hashes; the user "" is there for each route with users
	slots chan struct{}
	queue atomic.Int64
	salt  [32]byte

	mu    sync.Mutex
	known map[[32]byte]struct{} // what was found right
}

func newPasswords(in *Ingress) *passwords {
	p := &passwords{slots: make(chan struct{}, hashers), known: map[[32]byte]struct{}{}}
	rand.Read(p.salt[:]) // never fails
	p.set.Store(&map[userKey]string{})
	p.asker = asker[Password]{
		what: "users of routes", ask: in.cfg.Passwords, use: p.use, file: in.cfg.PasswordFile, magic: passwordsMagic, logger: in.cfg.Logger,
		wake: make(chan struct{}, 1),
	}
	return p
}

// check asks for a user of the route, and returns the page for a client that is
// none. The app does not get the password.
func (p *passwords) check(x *exchange, g *gate) *page {
	set := *p.set.Load()
	if _, loaded := set[userKey{g.route, ""}]; !loaded {
		return &page{Status: http.StatusServiceUnavailable, Code: "users_unknown", Title: "Not ready yet",
			Detail: "The ingress does not know the users of this address yet.", Hint: "Try again in a moment.", retryAfter: 1}
	}
	unauthorized := &page{Status: http.StatusUnauthorized, Code: "unauthorized", Title: "Sign in",
		Detail: "This address asks for a user and a password.", asks: true}
	user, password, ok := x.r.BasicAuth()
	if !ok || user == "" || len(password) > app.MaxUserPassword {
		return unauthorized
	}
	hash, ok := set[userKey{g.route, user}]
	if !ok {
		hash = string(noUser())
	}
	right, err := p.compare(x.r.Context(), hash, password)
	switch {
	case err != nil:
		return tooMany()
	case !right || !ok:
		return unauthorized
	}
	x.out.signedIn = true
	return nil
}

var errHashQueue = errs.New(errs.Unavailable, "too many passwords are being checked")

// compare reports whether a hash is that of a password.
func (p *passwords) compare(ctx context.Context, hash, password string) (bool, error) {
	h := sha256.New()
	h.Write(p.salt[:])
	h.Write([]byte(hash))
	h.Write([]byte{0})
	h.Write([]byte(password))
	key := [32]byte(h.Sum(nil))
	p.mu.Lock()
	_, known := p.known[key]
	p.mu.Unlock()
	if known {
		return true, nil
	}
	defer p.queue.Add(-1)
	if p.queue.Add(1) > hashers+hashQueue {
		return false, errHashQueue
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.known) >= maxKnown {
		clear(p.known)
	}
	p.known[key] = struct{}{}
	return true, nil
}

// changed has run ask again after a change of a route with users.
func (p *passwords) changed(c informer.Change[*app.Route]) {
	has := func(r *app.Route) bool {
		return hasLogin(r) || r != nil && r.Spec.Settings != nil && len(r.Spec.Settings.Users) > 0
	}
	if has(c.Old) || has(c.New) {
		p.refresh()
	}
}

func (p *passwords) use(list []Password) {
	set := make(map[userKey]string, 2*len(list))
	for _, o := range list {
		set[userKey{o.Route, o.User}] = o.Hash
		set[userKey{o.Route, ""}] = ""
	}
	p.set.Store(&set)
}
