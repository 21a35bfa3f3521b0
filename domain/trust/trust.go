// Package trust knows the tokens of OpenID Connect with which programs and people log in
// that have no key: jobs of CI, whose system signs a token that says which repository and
// branch they are of, and people at a browser, whose token the server gets from the issuer
// itself. The rules say whose tokens give which roles in which project.
//
//	Load, Run      read the file of rules, and again when it has changed
//	Authenticate   the identity of a token
//	Begin, Finish  a login with a browser, by the authorization code flow
//
// In: a file of rules, tokens, and the keys that issuers publish. Out: identities. A token
// of an issuer that no rule names is refused without a request to that issuer.
package trust

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"go.yaml.in/yaml/v3"
	"golang.org/x/time/rate"

	"miren.dev/runtime/pkg/boundedhttp"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/text"
)

const (
	// Session is how long a login by a token lasts unless its rule says otherwise, however
	// long the token is valid.
	Session = time.Hour
	// minSession and maxSession bound what a rule may say.
	minSession, maxSession = time.Minute, 12 * time.Hour
	// AllProjects as the project of a rule stands for the installation.
	AllProjects = "*"
	// maxLife is the longest validity of a token that is taken.
	maxLife = 24 * time.Hour
	// maxFile bounds the file of rules, and an answer of an issuer, in bytes.
	maxFile = 1 << 20
	// maxName bounds the name of an identity, in bytes.
	maxName = 200
	// askTime bounds a call of an issuer, and askAgain is after how long one that did not
	// answer is asked again.
	askTime  = 10 * time.Second
	askAgain = 5 * time.Second
	// perSecond and burst bound the tokens of an issuer that are verified: one with an unknown
	// key has the issuer asked for its keys.
	perSecond = 20
	burst     = 100
)

// algorithms are the signatures that are taken: those with a public key.
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA}

// Rule says whose tokens give which roles.
type Rule struct {
	Issuer   string            `yaml:"issuer"`   // URL
	Audience string            `yaml:"audience"` // for whom the token was made: a name of this server
	Claims   map[string]string `yaml:"claims"`   // that the token must have; * stands for any text
	Project  string            `yaml:"project"`  // name, or AllProjects
	Roles    []string          `yaml:"roles"`    // in the project
	Session  time.Duration     `yaml:"session"`  // how long a login lasts; 0: Session
}

// Rules are the rules of a server. It is safe for concurrent use.
type Rules struct {
	path string // "": there is no file
	now  atomic.Pointer[ruleSet]

	mu      sync.Mutex
	text    []byte // of the file, as it was parsed last
	pending []byte // of the file, when it differed from text at the last read
	err     error  // why text is not in force
}

// ruleSet is the rules of a file.
type ruleSet struct {
	rules   []Rule
	issuers map[string]*issuer
}

// issuer is one that a rule names.
type issuer struct {
	url    string
	client *http.Client
	limit  *rate.Limiter

	mu       sync.Mutex
	provider *oidc.Provider
	asked    time.Time // when the issuer answered, or the time for it was over
	err      error     // why there is no provider
}

// Load reads the rules of a file; "": none. Errors have class FailedPrecondition and name
// file and rule.
func Load(path string) (*Rules, error) {
	r := &Rules{path: path}
	r.now.Store(&ruleSet{})
	if path == "" {
		return r, nil
	}
	b, err := r.read()
	if err != nil {
		return nil, err
	}
	return r, r.use(b)
}

// parse returns the rules of a text. Issuers of old that it names too are kept, with what
// they answered.
func parse(path string, b []byte, old *ruleSet) (*ruleSet, error) {
	s := &ruleSet{issuers: map[string]*issuer{}}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&s.rules); err != nil && !errors.Is(err, io.EOF) {
		return nil, broken(path, "make it a list of rules with issuer, audience, claims, project and roles, as in docs/ci.md", "%v", err)
	}
	client := &http.Client{Timeout: askTime, Transport: boundedhttp.Transport(http.DefaultTransport, maxFile)}
	for i, rule := range s.rules {
		if problem, fix := rule.check(); problem != "" {
			return nil, broken(path, fix, "rule %d, of the issuer %q: %s", i+1, text.Cut(rule.Issuer, maxName), problem)
		}
		is := old.issuers[rule.Issuer]
		if is == nil {
			is = s.issuers[rule.Issuer]
		}
		if is == nil {
			is = &issuer{url: rule.Issuer, client: client, limit: rate.NewLimiter(perSecond, burst)}
		}
		s.issuers[rule.Issuer] = is
	}
	return s, nil
}

// broken returns the error for a file of rules, with the command that mends it.
func broken(path, fix, format string, args ...any) error {
	return errs.New(errs.FailedPrecondition, "api.trust_file: %s: %s", path, fmt.Sprintf(format, args...)).
		WithHint("%s: `sudoedit %s`; the server reads it again by itself", fix, path)
}

// check returns what is wrong with a rule, and how it is right; "" if it is.
func (r *Rule) check() (problem, fix string) {
	u, err := url.Parse(r.Issuer)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && !(u.Scheme == "http" && local(u.Hostname())):
		return "its issuer is no URL with https", "set issuer to the URL that the tokens have as iss"
	case r.Audience == "":
		return "it has no audience, so tokens that were made for others would do", "set audience to a name of this server, for which the job asks"
	case len(r.Claims) == 0:
		return "it has no claims, so everyone with a token of the issuer would do", "add claims that only your tokens have, such as repository"
	case r.Project == "":
		return "it has no project", `set project to a name that r project list shows, or to "*" for all`
	case len(r.Roles) == 0:
		return "it has no roles", "add roles: " + strings.Join(rpc.DefaultRoles.Names(), ", ")
	case r.Session != 0 && (r.Session < minSession || r.Session > maxSession):
		return fmt.Sprintf("its session of %s is not between %s and %s", r.Session, minSession, maxSession), "change session, or leave it out"
	}
	for _, role := range r.Roles {
		if !slices.Contains(rpc.DefaultRoles.Names(), role) {
			return fmt.Sprintf("there is no role %q", role), "change roles: they are " + strings.Join(rpc.DefaultRoles.Names(), ", ")
		}
	}
	for name, want := range r.Claims {
		if strings.Trim(want, "*") == "" {
			return fmt.Sprintf("the claim %s may be anything", name), "write what the claim must be"
		}
	}
	return "", ""
}

func local(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// IsToken reports whether a credential looks like a token, and not like an API key.
func IsToken(s string) bool { return strings.HasPrefix(s, "ey") && strings.Count(s, ".") == 2 }

// Authenticate returns the identity of a token, for a session. Errors: Unauthenticated for
// one that is not valid or that no rule takes; Unavailable if its issuer does not answer;
// ResourceExhausted if too many are verified.
func (r *Rules) Authenticate(ctx context.Context, token string) (rpc.Identity, error) {
	return r.authenticate(ctx, token, func(*oidc.IDToken) error { return nil })
}

// authenticate is Authenticate; check is asked about a token that is valid.
func (r *Rules) authenticate(ctx context.Context, token string, check func(*oidc.IDToken) error) (rpc.Identity, error) {
	set := r.now.Load()
	from, err := issuerOf(token)
	if err != nil {
		return rpc.Identity{}, err
	}
	is := set.issuers[from]
	if is == nil {
		return rpc.Identity{}, refused("tokens of the issuer %q are not trusted here", text.Cut(from, maxName))
	}
	t, err := is.verify(ctx, token)
	if err == nil {
		err = check(t)
	}
	if err != nil {
		return rpc.Identity{}, err
	}
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return rpc.Identity{}, refused("the claims of the token cannot be read")
	}
	if t.Expiry.Sub(t.IssuedAt) > maxLife {
		return rpc.Identity{}, refused("the token is valid for longer than %s", maxLife)
	}
	why := ""
	for _, rule := range set.rules {
		if rule.Issuer != from {
			continue
		}
		problem := rule.mismatch(t, claims)
		if problem == "" {
			return rule.identity(t), nil
		}
		why = cmp.Or(why, problem)
	}
	return rpc.Identity{}, refused("no rule takes the token: %s", why)
}

func refused(format string, args ...any) error {
	return errs.New(errs.Unauthenticated, format, args...).WithHint("an administrator of the server changes the rules: api.trust_file, docs/ci.md")
}

// issuerOf reads who claims to have issued a token, which nothing has verified.
func issuerOf(token string) (string, error) {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	b, err := base64.RawURLEncoding.DecodeString(payload)
	var c struct {
		Issuer string `json:"iss"`
	}
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(b)).Decode(&c)
	}
	if err != nil || c.Issuer == "" {
		return "", refused("the token is no JSON Web Token with an issuer")
	}
	return c.Issuer, nil
}

// verify verifies signature, issuer and times of a token.
func (i *issuer) verify(ctx context.Context, token string) (*oidc.IDToken, error) {
	if !i.limit.Allow() {
		return nil, errs.New(errs.ResourceExhausted, "too many logins by tokens of %s", i.url).WithHint("try again in a moment")
	}
	p, err := i.ask()
	if err != nil {
		return nil, err
	}
	// The rules compare the audience.
	v := p.VerifierContext(oidc.ClientContext(context.WithoutCancel(ctx), i.client), &oidc.Config{SkipClientIDCheck: true, SupportedSigningAlgs: algorithms})
	t, err := v.Verify(ctx, token)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, refused("the token expired at %s", expired.Expiry.UTC().Format(time.RFC3339))
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && strings.Contains(err.Error(), "fetching keys"):
		return nil, i.away(err)
	case err != nil:
		return nil, refused("the token is not valid: %v", err)
	}
	return t, nil
}

func (i *issuer) away(err error) error {
	return errs.New(errs.Unavailable, "the issuer %s of the token does not answer: %w", i.url, err).WithHint("try again")
}

// ask returns the provider, which it asks for once it has not.
func (i *issuer) ask() (*oidc.Provider, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.provider != nil || i.err != nil && time.Since(i.asked) < askAgain {
		return i.provider, i.err
	}
	// The provider keeps the context for its keys.
	p, err := oidc.NewProvider(oidc.ClientContext(context.Background(), i.client), i.url)
	i.asked = time.Now() // not before: the callers who waited for this answer do not ask again
	if err != nil {
		i.err = i.away(err)
		return nil, i.err
	}
	i.provider, i.err = p, nil
	return p, nil
}

// mismatch returns what of a token the rule does not take, "" for nothing.
func (r *Rule) mismatch(t *oidc.IDToken, claims map[string]any) string {
	if !slices.Contains(t.Audience, r.Audience) {
		return fmt.Sprintf("its audience is %s, not %s", text.Cut(strings.Join(t.Audience, ", "), maxName), r.Audience)
	}
	names := make([]string, 0, len(r.Claims))
	for name := range r.Claims {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		got, ok := claims[name]
		if !ok {
			return "it has no claim " + name
		}
		if !slices.ContainsFunc(values(got), func(v string) bool { return matches(r.Claims[name], v) }) {
			return fmt.Sprintf("its claim %s is %s", name, text.Cut(fmt.Sprint(got), maxName))
		}
	}
	return ""
}

// values are the texts of a claim: of a list those of its members.
func values(claim any) []string {
	list, ok := claim.([]any)
	if !ok {
		list = []any{claim}
	}
	var out []string
	for _, v := range list {
		switch v.(type) {
		case string, bool, float64:
			out = append(out, fmt.Sprint(v))
		}
	}
	return out
}

// matches reports whether a value fits a pattern; * stands for any text.
func matches(pattern, value string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == value
	}
	rest, ok := strings.CutPrefix(value, parts[0])
	if !ok {
		return false
	}
	last := parts[len(parts)-1]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return strings.HasSuffix(rest, last)
}

// identity is that of a token which the rule takes. Its name has a colon, which no user's
// has.
func (r *Rule) identity(t *oidc.IDToken) rpc.Identity {
	id := rpc.Identity{Name: text.Cut("token:"+t.Subject, maxName), How: rpc.HowToken, Expires: time.Now().Add(cmp.Or(r.Session, Session))}
	for _, role := range r.Roles {
		if r.Project != AllProjects {
			role += "@" + r.Project
		}
		id.Roles = append(id.Roles, role)
	}
	return id
}
