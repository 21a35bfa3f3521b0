package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// runStandby runs a standby for m until the test ends, or end is called.
func runStandby(t *testing.T, m *Manager) (end func()) {
	t.Helper()
	s, err := NewStandby(m.cfg.Instance, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// startWithStandby starts the network with guests of apps, and a standby that holds the sockets for names. stop
// ends the server.
func startWithStandby(t *testing.T) (m *Manager, guests map[string]Attachment, endStandby, stop func()) {
	t.Helper()
	newInternet(t)
	m = start(t)
	guests = attachApps(t, m)
	setApps(t, m, appsOf())
	endStandby, stop = runStandby(t, m), m.runsUntil(t)
	wait.For(t, "the standby holds the sockets", m.held.Load)
	return m, guests, endStandby, stop
}

// nextManager starts the network as the next server does.
func nextManager(t *testing.T, m *Manager) *Manager {
	t.Helper()
	next := New(m.cfg)
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.proxy.Close)
	return next
}

// TestNamesOutliveTheServer: apps that ask for names all the time always get the same answers, while
// servers end and start, and the standby is replaced.
func TestNamesOutliveTheServer(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m, guests, endStandby, stop := startWithStandby(t)
	defer func() { stop() }()
	ports := m.ports

	asking, cancel := context.WithCancel(t.Context())
	var asks sync.WaitGroup
	var asked [4]atomic.Int64
	server := netip.AddrPortFrom(m.gateway(), 53)
	for i, q := range []struct{ from, name, want string }{
		{"shop", "worker.shop.internal", guests["worker"].Address.String()},
		{"blog", "db.internal", guests["db"].Address.String()},
		{"shop", "other.example", "203.0.113.82"},
		{"filter", "good.example", "203.0.113.80"},
	} {
		asks.Go(func() {
			for asking.Err() == nil {
				var got []string
				var err error
				for range 2 { // as resolvers do: a server that ends may have read a question
					if got, err = resolve(t, guests[q.from].NetNS, q.name, server, dnsmessage.TypeA, 5*time.Second); err == nil {
						break
					}
				}
				if err != nil || !slices.Equal(got, []string{q.want}) {
					t.Errorf("%s asks for %s: %q, %v; want %s", q.from, q.name, got, err, q.want)
					return
				}
				asked[i].Add(1)
			}
		})
	}
	all := func(what string) {
		t.Helper()
		var before [4]int64
		for i := range asked {
			before[i] = asked[i].Load()
		}
		wait.For(t, "answers "+what, func() bool {
			for i := range asked {
				if asked[i].Load() < before[i]+3 {
					return t.Failed()
				}
			}
			return true
		})
	}
	all("of the first server")
	for n := range 3 {
		stop()
		stop = func() {}
		all("without a server")
		if n == 1 { // policies hold
			if got, err := resolve(t, guests["filter"].NetNS, "other.example", server, dnsmessage.TypeA, later); !errors.Is(err, errNoName) {
				t.Errorf("a name that the policy does not permit: %q, %v", got, err)
			}
			if got, err := resolve(t, guests["foreign"].NetNS, "db.internal", server, dnsmessage.TypeA, later); !errors.Is(err, errNoName) {
				t.Errorf("a name of another project: %q, %v", got, err)
			}
		}
		m = nextManager(t, m)
		if m.ports.DNS != ports.DNS {
			t.Errorf("the port for names is %d, was %d", m.ports.DNS, ports.DNS)
		}
		all("of the standby beside a server that starts")
		stop = m.runsUntil(t)
		wait.For(t, "the standby holds the sockets", m.held.Load)
		all("of the next server")
		if n == 1 { // the process of the standby is replaced, or crashes
			endFirst := endStandby
			endStandby = runStandby(t, m)
			endFirst()
			wait.For(t, "another standby holds the sockets", func() bool {
				c, held, err := m.dialStandby(t.Context())
				if err != nil {
					return false
				}
				c.Close()
				held.close()
				return held != nil && m.held.Load()
			})
		}
	}
	cancel()
	asks.Wait()
}

// TestStartLosesNoQuestion: the questions of sandboxes pass the firewall while a server that starts makes it again.
func TestStartLosesNoQuestion(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m, guests, _, stop := startWithStandby(t)
	stop()
	asking, cancel := context.WithCancel(t.Context())
	var asks sync.WaitGroup
	var asked atomic.Int64
	server := netip.AddrPortFrom(m.gateway(), 53)
	for _, q := range [][2]string{{"shop", "worker.shop.internal"}, {"blog", "db.internal"}, {"shop", "worker.shop.internal"}} {
		asks.Go(func() {
			for asking.Err() == nil {
				if _, err := resolve(t, guests[q[0]].NetNS, q[1], server, dnsmessage.TypeA, 5*time.Second); err != nil {
					t.Errorf("%s asks once for %s: %v", q[0], q[1], err)
					return
				}
				asked.Add(1)
			}
		})
	}
	const starts = 300 // of which 6 lost a question when they replaced the table
	for n := range int64(starts) {
		next := New(m.cfg)
		if err := next.Start(t.Context()); err != nil {
			t.Error(err)
			break
		}
		next.proxy.Close()
		wait.For(t, "questions beside the starts", func() bool { return asked.Load() > n || t.Failed() })
	}
	cancel()
	asks.Wait()
}

// TestStandbyDies: without server and standby, the questions of apps are led to the proxy for a bounded time only
// if the standby dies first; the next server opens sockets itself.
func TestStandbyDies(t *testing.T) {
	if !private.Run(t) {
		return
	}
	newInternet(t)
	m := start(t)
	setApps(t, m, appsOf())
	at := attachWith(t, m, "shop", egress.Open())
	end := runStandby(t, m)
	stop := m.runsUntil(t)
	wait.For(t, "the standby holds the sockets", m.held.Load)
	end()
	wait.For(t, "the server knows that the standby is gone", func() bool { return !m.held.Load() })
	stop()
	server := netip.AddrPortFrom(m.gateway(), 53)
	names := func() error {
		_, err := resolve(t, at.NetNS, "other.example", server, dnsmessage.TypeA, time.Second)
		return err
	}
	wait.NoError(t, "the machine's name server", names)
	next := nextManager(t, m)
	stop = next.runsUntil(t)
	defer func() { stop() }()
	wait.NoError(t, "a name of the private network", func() error {
		_, err := resolve(t, at.NetNS, "shop.internal", server, dnsmessage.TypeA, time.Second)
		return err
	})
}

// TestStandbyMessages: whichever message of the exchange is the last one, the standby answers
// with the sockets that it was last given, or has none.
func TestStandbyMessages(t *testing.T) {
	if !private.Run(t) {
		return
	}
	newInternet(t)
	m := start(t)
	setApps(t, m, appsOf())
	at := attachWith(t, m, "shop", egress.Open())
	m.answering.Store(true)
	m.held.Store(true)
	if err := m.syncPeers(); err != nil {
		t.Fatal(err)
	}
	runStandby(t, m)
	answers := func(want bool, after string) {
		t.Helper()
		ask := func() error {
			_, err := resolve(t, at.NetNS, "shop.internal", netip.AddrPortFrom(m.gateway(), 53), dnsmessage.TypeA, time.Second)
			return err
		}
		if want {
			wait.NoError(t, "an answer after "+after, ask)
		} else if ask() == nil {
			t.Errorf("an answer after %s", after)
		}
	}
	c, n, err := m.dialStandby(t.Context())
	if err != nil || n != nil {
		t.Fatal(n, err)
	}
	c.Close()
	answers(false, "a connection without sockets")
	if c, err = m.hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers(false, "hold, while the server lives and does not read")
	m.proxy.Close()
	c.Close() // as the kernel does for a process that is killed
	answers(true, "the death of the server")

	next := nextManager(t, m)
	answers(true, "the start of the next server")
	c, n, err = next.dialStandby(t.Context())
	if err != nil || n == nil {
		t.Fatal(n, err)
	}
	n.close()
	for _, broken := range []any{"text", standbyMessage{Hold: true}, standbyMessage{Leave: true}, map[string]int{"hold": 1}} {
		b, _ := json.Marshal(broken)
		if _, err := c.Write(b); err != nil {
			break // it was told off
		}
	}
	c.Close()
	answers(true, "messages without sockets")
	if c, err = next.hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := send(c, standbyMessage{Leave: true}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	wait.For(t, "the standby has no sockets", func() bool {
		c, n, err := next.dialStandby(t.Context())
		if err != nil {
			return false
		}
		defer c.Close()
		defer n.close()
		return n == nil
	})
	next.proxy.Close()
	answers(false, "leave")
	if st, err := os.Stat(standbySocket(m.cfg.Instance)); err != nil || st.Mode().Perm() != 0o600 {
		t.Error(fmt.Sprint(st), err)
	}
}
