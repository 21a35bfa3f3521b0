package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

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

// serveUDP reads questions until ctx ends or c is closed. It answers the questions that it has
// read, those that need no other server's answer also after work has ended.
func (p *Proxy) serveUDP(ctx, work context.Context, c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxAllAsking)
	first, buf := make([]byte, maxQuestion), make([]byte, maxQuestion)
	for {
		question, from, err := p.next(c, raw, first, buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			continue // such as an ICMP error about an earlier answer
		}
		if question == nil || !p.mayAsk(from.Addr()) {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			p.asked(from.Addr())
			continue
		}
		question = bytes.Clone(question)
		wg.Go(func() {
			defer func() { p.asked(from.Addr()); <-slots }()
			if answer := p.answer(work, "udp4", from.Addr(), question); answer != nil {
				_, _ = c.WriteToUDPAddrPort(answer, from) // a lost answer is asked for again
			}
		})
	}
}

// next takes a question from a socket, in one of two buffers. A question for a name of a private
// network stays in the socket until its answer is sent, and is nil then: when this process is killed
// in between, the question waits there for the process that answers next.
func (p *Proxy) next(c *net.UDPConn, raw syscall.RawConn, first, buf []byte) ([]byte, netip.AddrPort, error) {
	n, from, err := receive(raw, first, unix.MSG_PEEK)
	if err != nil {
		return nil, from, err
	}
	first = first[:n]
	var answer []byte
	if reply, q, ok := asks(first); ok {
		answer = p.answerInternal(from.Addr(), reply, q)
	}
	if answer != nil {
		_, _ = c.WriteToUDPAddrPort(answer, from)
	}
	// While two processes read, the other one may have taken this question. Then another one is next, or none.
	n, next, err := receive(raw, buf, unix.MSG_DONTWAIT)
	if err != nil || answer != nil && next == from && bytes.Equal(buf[:n], first) {
		return nil, next, err
	}
	return buf[:n], next, nil
}

// receive reads one message of an IPv4 guest. With MSG_PEEK it waits for one, and leaves it in the
// socket. With MSG_DONTWAIT its error is EAGAIN if there is none.
func receive(c syscall.RawConn, buf []byte, flags int) (n int, from netip.AddrPort, _ error) {
	var sender unix.Sockaddr
	var inner error
	err := c.Read(func(fd uintptr) bool {
		n, sender, inner = unix.Recvfrom(int(fd), buf, flags)
		return flags == unix.MSG_DONTWAIT || !errors.Is(inner, unix.EAGAIN)
	})
	if err == nil {
		err = inner
	}
	if v4, ok := sender.(*unix.SockaddrInet4); ok && err == nil {
		return n, netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), uint16(v4.Port)), nil
	}
	return 0, from, cmp.Or(err, error(unix.EAFNOSUPPORT))
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

// asks parses the question of a guest. It returns the head of the reply; ok is false for no reply.
func asks(message []byte) (reply dnsmessage.Header, q dnsmessage.Question, ok bool) {
	var parser dnsmessage.Parser
	h, err := parser.Start(message)
	if err != nil || h.Response {
		return reply, q, false
	}
	reply = dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	questions, err := parser.AllQuestions()
	if err != nil || len(questions) != 1 || h.OpCode != 0 || questions[0].Class != dnsmessage.ClassINET {
		reply.RCode = dnsmessage.RCodeFormatError
		return reply, q, true
	}
	return reply, questions[0], true
}

// answerInternal returns the answer to a guest's question for a name of its private network,
// without waiting; nil for other questions. The arguments are those of asks.
func (p *Proxy) answerInternal(guest netip.Addr, reply dnsmessage.Header, q dnsmessage.Question) []byte {
	id, _, known := p.policyOf(guest)
	if !known || reply.RCode != dnsmessage.RCodeSuccess || p.cfg.Internal == nil {
		return nil
	}
	internal, ok := p.cfg.Internal(id, egress.Canonical(q.Name.String()))
	if !ok {
		return nil
	}
	if internal.Missing {
		reply.RCode = dnsmessage.RCodeNameError
	}
	if q.Type != dnsmessage.TypeA {
		internal.Addresses = nil
	}
	reply.Authoritative = true
	return pack(reply, &q, internal.Addresses, internalTTL)
}

// answer returns the answer to any question of a guest; nil for no answer.
func (p *Proxy) answer(ctx context.Context, network string, guest netip.Addr, question []byte) []byte {
	reply, q, ok := asks(question)
	if !ok {
		return nil
	}
	if answer := p.answerInternal(guest, reply, q); answer != nil {
		return answer
	}
	if reply.RCode != dnsmessage.RCodeSuccess {
		return pack(reply, nil, nil, 0)
	}
	_, policy, ok := p.policyOf(guest)
	if !ok {
		return nil
	}
	name := egress.Canonical(q.Name.String())
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
		var err error
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
