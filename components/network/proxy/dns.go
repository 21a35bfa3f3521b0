package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"miren.dev/runtime/pkg/egress"
)

const (
	maxQuestion = 4096 // bytes of a question
	// maxAnswers keeps an answer to the longest name below the 512 bytes of a
	// UDP packet: 12 for the header, 259 for the question, 16 for each address.
	maxAnswers = 15
	// dnsIdle is how long a guest may keep a TCP connection without a question.
	dnsIdle = 10 * time.Second
	// internalTTL is for how many seconds a guest may use an address of a private network.
	internalTTL = 5
)

// Internal is the answer to a question for a name of a private network.
type Internal struct {
	Missing   bool // there is no such name
	Addresses []netip.Addr
}

// serveUDP reads questions until ctx ends and c is closed or its deadline has passed. It
// answers the questions that it has read until work ends.
func (p *Proxy) serveUDP(ctx, work context.Context, c *net.UDPConn) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxAllAsking)
	buf := make([]byte, maxQuestion)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			continue // such as an ICMP error about an earlier answer
		}
		guest := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if !p.mayAsk(guest.Addr()) {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			p.asked(guest.Addr())
			continue
		}
		question := append([]byte(nil), buf[:n]...)
		wg.Go(func() {
			defer func() { p.asked(guest.Addr()); <-slots }()
			if answer := p.answer(work, "udp4", guest.Addr(), question); answer != nil {
				_, _ = c.WriteToUDPAddrPort(answer, guest) // a lost answer is asked for again
			}
		})
	}
}

func (p *Proxy) mayAsk(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guests[a]
	if g == nil || g.asking >= maxAsking {
		return false
	}
	g.asking++
	return true
}

func (p *Proxy) asked(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.guests[a]; g != nil && g.asking > 0 {
		g.asking--
	}
}

// converse answers the questions on a TCP connection.
func (p *Proxy) converse(ctx context.Context, c *conn) {
	for {
		_ = c.SetDeadline(time.Now().Add(dnsIdle))
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(length[:]))
		if len(question) > maxQuestion {
			return
		}
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		answer := p.answer(ctx, "tcp4", c.guest, question)
		if answer == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer returns the answer to a guest's question; nil for no answer.
func (p *Proxy) answer(ctx context.Context, network string, guest netip.Addr, question []byte) []byte {
	var parser dnsmessage.Parser
	h, err := parser.Start(question)
	if err != nil || h.Response {
		return nil
	}
	reply := dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	questions, err := parser.AllQuestions()
	if err != nil || len(questions) != 1 || h.OpCode != 0 || questions[0].Class != dnsmessage.ClassINET {
		reply.RCode = dnsmessage.RCodeFormatError
		return pack(reply, nil, nil, 0)
	}
	q := questions[0]
	id, policy, ok := p.policyOf(guest)
	if !ok {
		return nil
	}
	name := egress.Canonical(q.Name.String())
	if p.cfg.Internal != nil {
		if internal, ok := p.cfg.Internal(id, name); ok {
			if internal.Missing {
				reply.RCode = dnsmessage.RCodeNameError
			}
			if q.Type != dnsmessage.TypeA {
				internal.Addresses = nil
			}
			reply.Authoritative = true
			return pack(reply, &q, internal.Addresses, internalTTL)
		}
	}
	if policy.Mode == egress.All && !policy.Filtered() {
		return p.names.pass(ctx, network, question)
	}
	r := egress.Record{Protocol: "dns", Name: name, Allowed: policy.Resolves(name)}
	var known entry
	switch {
	case !r.Allowed:
		// Not "refused", after which some resolvers ask again until they time out.
		reply.RCode, r.Reason = dnsmessage.RCodeNameError, "the policy does not permit the name"
	case q.Type == dnsmessage.TypeA:
		if known, err = p.names.lookup(ctx, name); err != nil {
			reply.RCode, r.Reason = dnsmessage.RCodeServerFailure, err.Error()
		} else if known.missing {
			reply.RCode, r.Reason = dnsmessage.RCodeNameError, "no such name"
		}
		p.remember(guest, name, known)
	}
	// Other types have no answer: guests have no IPv6, and HTTPS records would
	// have clients encrypt the name that decides.
	p.record(guest, r)
	return pack(reply, &q, known.addresses, known.ttl())
}

// pack returns a message.
func pack(h dnsmessage.Header, q *dnsmessage.Question, addresses []netip.Addr, ttl uint32) []byte {
	b := dnsmessage.NewBuilder(nil, h)
	b.EnableCompression()
	err := b.StartQuestions()
	if err == nil && q != nil {
		err = b.Question(*q)
	}
	if err == nil && len(addresses) > 0 {
		err = b.StartAnswers()
		for _, a := range addresses[:min(len(addresses), maxAnswers)] {
			if err == nil {
				err = b.AResource(dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: ttl}, dnsmessage.AResource{A: a.As4()})
			}
		}
	}
	if err != nil {
		return nil
	}
	message, err := b.Finish()
	if err != nil {
		return nil
	}
	return message
}

// remember notes with which addresses a name was answered.
func (p *Proxy) remember(guest netip.Addr, name string, known entry) {
	if len(known.addresses) == 0 {
		return
	}
	until := time.Now().Add(max(answerValid, time.Until(known.until)))
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guests[guest]
	if g == nil {
		return
	}
	if g.answers[name] == nil {
		if len(g.answers) >= maxNames {
			for other := range g.answers { // any: forgotten ones are looked up again
				delete(g.answers, other)
				break
			}
		}
		g.answers[name] = map[netip.Addr]time.Time{}
	}
	for _, a := range known.addresses[:min(len(known.addresses), maxAnswers)] {
		if len(g.answers[name]) >= maxAddresses {
			for other := range g.answers[name] {
				delete(g.answers[name], other)
				break
			}
		}
		g.answers[name][a] = until
	}
}

// belongs reports whether an address is one of a name, for a guest.
func (p *Proxy) belongs(ctx context.Context, guest netip.Addr, name string, a netip.Addr) bool {
	name = egress.Canonical(name)
	p.mu.Lock()
	g := p.guests[guest]
	known := g != nil && time.Now().Before(g.answers[name][a])
	p.mu.Unlock()
	if known {
		return true
	}
	// The guest may know it from before the proxy was started.
	now, err := p.names.lookup(ctx, name)
	if err != nil {
		return false
	}
	for _, has := range now.addresses {
		if has == a {
			p.remember(guest, name, now)
			return true
		}
	}
	return false
}
