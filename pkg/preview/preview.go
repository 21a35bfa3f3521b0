// Package preview has what the server and the ingress agree on about previews,
// the ports of sandboxes that the ingress serves: their host names, and the
// tokens that open them.
//
// # Host names
//
// The host of a preview is <port>-<sandbox>.<domain>, with the sandbox's id
// without its hyphen: 3000-sb4k2j0123456789ab.localhost. Clients of E2B make the
// same names.
//
// # Tokens
//
// A token says that its bearer may open one subject (a preview, or every preview
// of a sandbox) until a time. The server signs it (Ed25519); the ingress has the
// public key only, and so can make none. In base64 without padding, for URLs:
//
//	expiry     8 bytes, big endian, Unix seconds; 0: never
//	signature  64 bytes, of "runtime preview 1\x00" + subject + "\x00" + expiry
package preview

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"regexp"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Parameter is the query parameter in which a URL carries a token.
const Parameter = "preview_token"

const sandboxPrefix = "sb-"

// MaxPort is the highest port.
const MaxPort = 65535

var label = regexp.MustCompile(`^([1-9][0-9]{0,4})-sb([0-9a-z]{16})$`)

// Label returns the first label of the host of a port of a sandbox.
func Label(sandbox string, port int) string {
	return strconv.Itoa(port) + "-" + strings.Replace(sandbox, "-", "", 1)
}

// ParseLabel is the reverse of Label.
func ParseLabel(s string) (sandbox string, port int, ok bool) {
	if s == "" || s[0] < '1' || s[0] > '9' {
		return "", 0, false // most hosts; without the regular expression
	}
	m := label.FindStringSubmatch(s)
	if m == nil {
		return "", 0, false
	}
	port, _ = strconv.Atoi(m[1]) // five digits
	return sandboxPrefix + m[2], port, port <= MaxPort
}

// Key signs tokens.
type Key struct{ private ed25519.PrivateKey }

// NewKey derives a key from a secret of the installation.
func NewKey(secret []byte) Key {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("preview tokens"))
	return Key{ed25519.NewKeyFromSeed(h.Sum(nil))}
}

// Public returns the key by which Verify checks tokens.
func (k Key) Public() []byte { return k.private.Public().(ed25519.PublicKey) }

// tokenSize is the size of a token, in bytes.
const tokenSize = 8 + ed25519.SignatureSize

// Sign returns a token for a subject. The zero time: it does not expire.
func (k Key) Sign(subject string, expires time.Time) string {
	b := make([]byte, 8, tokenSize)
	if !expires.IsZero() {
		binary.BigEndian.PutUint64(b, uint64(expires.Unix()))
	}
	return base64.RawURLEncoding.EncodeToString(append(b, ed25519.Sign(k.private, message(subject, b))...))
}

func message(subject string, expiry []byte) []byte {
	m := append([]byte("runtime preview 1\x00"), subject...)
	return append(append(m, 0), expiry...)
}

// Verify checks that a token is for one of the subjects and returns when it
// expires, the zero time for never. Unauthenticated if it is for none,
// DeadlineExceeded if it has expired.
func Verify(public []byte, token string, now time.Time, subjects ...string) (time.Time, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != tokenSize || len(public) != ed25519.PublicKeySize {
		return time.Time{}, errInvalid
	}
	for _, s := range subjects {
		if !ed25519.Verify(public, message(s, b[:8]), b[8:]) {
			continue
		}
		at := int64(binary.BigEndian.Uint64(b))
		if at == 0 {
			return time.Time{}, nil
		}
		if expires := time.Unix(at, 0); now.Before(expires) {
			return expires, nil
		}
		return time.Time{}, errExpired
	}
	return time.Time{}, errInvalid
}

var (
	errInvalid = errs.New(errs.Unauthenticated, "the token is not valid here")
	errExpired = errs.New(errs.DeadlineExceeded, "the token has expired")
)
