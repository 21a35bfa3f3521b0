package proxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/singleflight"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

const (
	maxCached   = 8192             // names in the cache
	minTTL      = time.Second      // for which an answer is used at least
	maxTTL      = 5 * time.Minute  // and at most
	missingTTL  = 10 * time.Second // of a name without addresses
	serverTime  = 2 * time.Second  // for one server to answer
	serverTurns = 2                // how often each server is asked
)

// NamesEnd is how long ServeNames may take, after its context has ended, to answer the questions that it has read.
const NamesEnd = 10 * time.Second

// names asks the machine's name servers for addresses, and keeps their answers.
type names struct {
	servers func() []netip.AddrPort
	flight  singleflight.Group

	mu    sync.Mutex
	cache map[string]entry
}

// entry has the answers for a name.
type entry struct {
	addresses []netip.Addr
	missing   bool // there is no such name
	until     time.Time
}

// ttl returns for how many seconds an entry is valid.
func (e entry) ttl() uint32 { return uint32(max(0, time.Until(e.until)/time.Second)) }

func newNames(servers func() []netip.AddrPort) *names {
	return &names{servers: servers, cache: map[string]entry{}}
}

// lookup returns the addresses of a canonical name; Unavailable if no server answers.
func (n *names) lookup(ctx context.Context, name string) (entry, error) {
	n.mu.Lock()
	e, ok := n.cache[name]
	n.mu.Unlock()
	if ok && time.Now().Before(e.until) {
		return e, nil
	}
	// Of all callers, not of the first one, whose guest may give up.
	result := n.flight.DoChan(name, func() (any, error) {
		e, err := n.ask(context.WithoutCancel(ctx), name)
		if err == nil {
			n.keep(name, e)
		}
		return e, err
	})
	select {
	case r := <-result:
		return r.Val.(entry), r.Err
	case <-ctx.Done():
		return entry{}, errs.New(errs.ClassOf(ctx.Err()), "look up %s: %w", name, ctx.Err())
	}
}

func (n *names) keep(name string, e entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.cache) >= maxCached {
		now := time.Now()
		for other, e := range n.cache {
			if now.After(e.until) {
				delete(n.cache, other)
			}
		}
		for other := range n.cache { // any, and many at once, so that this is rare
			if len(n.cache) < maxCached*7/8 {
				break
			}
			delete(n.cache, other)
		}
	}
	n.cache[name] = e
}

// ask asks the servers in turn.
func (n *names) ask(ctx context.Context, name string) (entry, error) {
	dnsName, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return entry{missing: true, until: time.Now().Add(missingTTL)}, nil
	}
	var failed error
	for range serverTurns {
		for _, s := range n.servers() {
			e, err := askServer(ctx, s, dnsName)
			if err == nil {
				return e, nil
			}
			failed = errors.Join(failed, err)
		}
	}
	return entry{}, errs.New(errs.Unavailable, "no name server of the machine answers: %w", failed)
}

func askServer(ctx context.Context, server netip.AddrPort, name dnsmessage.Name) (entry, error) {
	ctx, cancel := context.WithTimeout(ctx, serverTime)
	defer cancel()
	for _, network := range []string{"udp4", "tcp4"} {
		e, truncated, err := exchange(ctx, network, server, name)
		if err != nil || !truncated {
			return e, err
		}
	}
	return entry{}, errs.New(errs.Unavailable, "%s cuts its answers off", server)
}

func exchange(ctx context.Context, network string, server netip.AddrPort, name dnsmessage.Name) (_ entry, truncated bool, _ error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		return entry{}, false, err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	q := dnsmessage.Question{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	h := dnsmessage.Header{ID: binary.BigEndian.Uint16(id[:]), RecursionDesired: true}
	question := pack(h, &q, nil, 0)
	if network == "tcp4" {
		question = append(binary.BigEndian.AppendUint16(nil, uint16(len(question))), question...)
	}
	if _, err := c.Write(question); err != nil {
		return entry{}, false, err
	}
	for {
		answer, err := readMessage(c, network)
		if err != nil {
			return entry{}, false, err
		}
		e, truncated, err := understand(answer, h.ID, q)
		if !errors.Is(err, errNotOurs) {
			return e, truncated, err
		}
	}
}

// pass returns the answer of the first server that answers a question, unchanged; nil
// if none does.
func (n *names) pass(ctx context.Context, network string, question []byte) []byte {
	for _, s := range n.servers() {
		if answer, err := passTo(ctx, network, s, question); err == nil {
			return answer
		}
	}
	return nil
}

func passTo(ctx context.Context, network string, server netip.AddrPort, question []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, serverTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	message := question
	if network == "tcp4" {
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(question))), question...)
	}
	if _, err := c.Write(message); err != nil {
		return nil, err
	}
	for {
		answer, err := readMessage(c, network)
		if err != nil || len(answer) > 2 && bytes.Equal(answer[:2], question[:2]) {
			return answer, err
		}
	}
}

func readMessage(c net.Conn, network string) ([]byte, error) {
	if network == "udp4" {
		buf := make([]byte, maxQuestion)
		n, err := c.Read(buf)
		return buf[:n], err
	}
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(c, buf)
	return buf, err
}

// errNotOurs: the message answers another question, or is forged.
var errNotOurs = errors.New("not an answer to the question")

// understand reads an answer. Its addresses count for the name that was asked
// for, behind however many aliases they are.
func understand(answer []byte, id uint16, q dnsmessage.Question) (e entry, truncated bool, _ error) {
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	if err != nil || !h.Response || h.ID != id {
		return e, false, errNotOurs
	}
	got, err := p.AllQuestions()
	if err != nil || len(got) != 1 || got[0].Type != q.Type || !equalNames(got[0].Name, q.Name) {
		return e, false, errNotOurs
	}
	switch h.RCode {
	case dnsmessage.RCodeSuccess:
	case dnsmessage.RCodeNameError:
		return entry{missing: true, until: time.Now().Add(missingTTL)}, false, nil
	default:
		return e, false, errs.New(errs.Unavailable, "the name server answers %s", h.RCode)
	}
	if h.Truncated {
		return e, true, nil
	}
	ttl := maxTTL
	for {
		rh, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return e, false, errs.New(errs.Unavailable, "the answer is malformed: %w", err)
		}
		if rh.Type != dnsmessage.TypeA || rh.Class != dnsmessage.ClassINET {
			if err := p.SkipAnswer(); err != nil {
				return e, false, errs.New(errs.Unavailable, "the answer is malformed: %w", err)
			}
			continue
		}
		a, err := p.AResource()
		if err != nil {
			return e, false, errs.New(errs.Unavailable, "the answer is malformed: %w", err)
		}
		ttl = min(ttl, time.Duration(rh.TTL)*time.Second)
		if len(e.addresses) < maxAnswers {
			e.addresses = append(e.addresses, netip.AddrFrom4(a.A))
		}
	}
	if len(e.addresses) == 0 {
		ttl = missingTTL
	}
	e.until = time.Now().Add(max(ttl, minTTL))
	return e, false, nil
}

func equalNames(a, b dnsmessage.Name) bool {
	return egress.Canonical(a.String()) == egress.Canonical(b.String())
}
