package ingress

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"time"
)

// stickyCookie names the sandbox that has the requests of a client.
const stickyCookie = "runtime_sticky"

// pick chooses a sandbox that is not in tried: that of the client's cookie if the
// route is sticky and it can be reached. It returns what target.pick does.
func (x *exchange) pick(tg *target, tried []*backend) (*backend, *load) {
	if g := tg.gate; g != nil && isSet(g.own.Sticky) {
		if c, err := x.r.Cookie(stickyCookie); err == nil {
			now := time.Now()
			for _, g := range tg.groups { // a client also keeps the version that it drew
				for _, list := range [][]*backend{g.backends, g.runners} {
					for _, b := range list {
						if stickyTag(b) == c.Value && !b.down(now) && !slices.Contains(tried, b) {
							return b, g.load
						}
					}
				}
			}
		}
	}
	return tg.pick(tried)
}

// stickyTag is the name of a sandbox in cookies. It does not tell its id.
func stickyTag(b *backend) string {
	sum := sha256.Sum256([]byte(stickyCookie + string(b.ID)))
	return hex.EncodeToString(sum[:12])
}

// stick has the client keep the sandbox that answers.
func (g *gate) stick(x *exchange, b *backend) {
	tag := stickyTag(b)
	if c, err := x.r.Cookie(stickyCookie); err == nil && c.Value == tag {
		return
	}
	x.w.Header().Add("Set-Cookie", (&http.Cookie{Name: stickyCookie, Value: tag, Path: g.path, HttpOnly: true, Secure: x.isSecure(),
		SameSite: http.SameSiteLaxMode}).String())
}

func isSet(b *bool) bool { return b != nil && *b }
