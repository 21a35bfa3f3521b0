package certificate

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/testsupport/pebbletest"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// TestRoutesGetCertificates: public hosts, wildcards too, as long as they have a route
// and no certificate of a user.
func TestRoutesGetCertificates(t *testing.T) {
	e := newEnv(t, pebbletest.Start(t, pebbletest.Config{}))
	e.start("node-a", nil)
	for _, host := range []string{"shop.example.com", "*.shop.example.com", "shop.internal", "localhost", "192.0.2.1", "com", "*"} {
		e.route(host)
	}
	roots := e.pebble.Roots()
	for _, host := range []string{"shop.example.com", "*.shop.example.com"} {
		c := e.issued(host, "")
		inter, leaf := x509.NewCertPool(), (*x509.Certificate)(nil)
		for b, rest := pem.Decode([]byte(c.Spec.Chain)); b != nil; b, rest = pem.Decode(rest) {
			x, err := x509.ParseCertificate(b.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if leaf == nil {
				leaf = x
			} else {
				inter.AddCert(x)
			}
		}
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: strings.Replace(host, "*", "any", 1), Roots: roots, Intermediates: inter}); err != nil {
			t.Error(err)
		}
	}
	served, _, err := e.service(e.store).Served(t.Context(), "")
	if err != nil || len(served) != 2 {
		t.Fatalf("%d certificates are served, %v", len(served), err)
	}
	orders, _, err := entity.List[certificate.CertificateOrder](t.Context(), e.store, entity.Query{})
	if err != nil || len(orders) != 2 {
		t.Errorf("%d orders, %v", len(orders), err)
	}
	text, err := json.Marshal(orders)
	if err != nil || strings.Contains(string(text), "PRIVATE KEY") {
		t.Errorf("%s %v", text, err)
	}

	if err := e.routes.Delete(t.Context(), "", "*.shop.example.com", ""); err != nil {
		t.Fatal(err)
	}
	e.none("*.shop.example.com")
	chain, key := tlstest.New(t).Issue(t, "shop.example.com")
	if _, err := e.service(e.store).Set(t.Context(), "", "own", chain, key); err != nil {
		t.Fatal(err)
	}
	e.none("shop.example.com")
	if served, _, err = e.service(e.store).Served(t.Context(), ""); err != nil || len(served) != 1 || served[0].Chain != chain {
		t.Errorf("%d certificates are served, %v", len(served), err)
	}
	if _, now := e.presented(""); now != 0 {
		t.Errorf("%d DNS records are left", now)
	}
	if err := e.service(e.store).Delete(t.Context(), "", "own"); err != nil {
		t.Fatal(err)
	}
	e.issued("shop.example.com", "")
}

// TestCertificatesAreRenewed before they expire, when a user deletes one, and when a
// user asks for it.
func TestCertificatesAreRenewed(t *testing.T) {
	e := newEnv(t, pebbletest.Start(t, pebbletest.Config{Life: 20 * time.Second}))
	e.start("node-a", nil)
	e.route("shop.example.com")
	first := e.issued("shop.example.com", "")
	second := e.issued("shop.example.com", first.Spec.Fingerprint)
	if second.ID != first.ID || second.Name != first.Name {
		t.Errorf("first %s %s, second %s %s", first.ID, first.Name, second.ID, second.Name)
	}

	e = newEnv(t, pebbletest.Start(t, pebbletest.Config{}))
	e.start("node-a", nil)
	e.route("shop.example.com")
	first = e.issued("shop.example.com", "")
	o, err := e.order("shop.example.com")
	if err != nil {
		t.Fatal(err)
	}
	life := first.Spec.NotAfter.Sub(first.Spec.NotBefore)
	if rest := first.Spec.NotAfter.Sub(timeOf(o.Status.RenewAt)); rest < life/3-time.Second || rest > life/2 {
		t.Errorf("renewed %s before it expires", rest)
	}
	if _, err := e.service(e.store).Renew(t.Context(), "", "Shop.example.com"); err != nil {
		t.Fatal(err)
	}
	second = e.issued("shop.example.com", first.Spec.Fingerprint)
	if err := e.service(e.store).Delete(t.Context(), "", second.Name); err != nil {
		t.Fatal(err)
	}
	e.issued("shop.example.com", second.Spec.Fingerprint)
}

// TestFailedOrderSaysWhy and is attempted again, later, or when a user asks.
func TestFailedOrderSaysWhy(t *testing.T) {
	e := newEnv(t, pebbletest.Start(t, pebbletest.Config{}))
	e.failing(errors.New("the zone is locked"))
	e.start("node-a", nil, func(r *Orders) { r.FirstRetry = time.Hour })
	e.route("shop.example.com")
	wait.NoError(t, "the order has failed", func() error {
		o, err := e.order("shop.example.com")
		if err != nil {
			return err
		}
		if st := o.Status; st.Phase != certificate.OrderPhaseWaiting || st.Attempts != 1 || !strings.Contains(st.Message, "the zone is locked") ||
			time.Until(timeOf(st.NextAttempt)) < 50*time.Minute {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	e.failing(nil)
	if _, err := e.service(e.store).Renew(t.Context(), "", "shop.example.com"); err != nil {
		t.Fatal(err)
	}
	e.issued("shop.example.com", "")
	o, err := e.order("shop.example.com")
	if err != nil || o.Status.Attempts != 0 || o.Status.Message != "" {
		t.Errorf("%+v %v", o.Status, err)
	}

	e = newEnv(t, e.pebble)
	e.start("node-a", nil, func(r *Orders) { r.DNS = nil })
	e.route("*.example.com")
	wait.NoError(t, "a wildcard is refused without DNS", func() error {
		o, err := e.order("*.example.com")
		if err == nil && (o.Status.Phase != certificate.OrderPhaseRefused || !strings.Contains(o.Status.Message, "dns-01")) {
			err = fmt.Errorf("%+v", o.Status)
		}
		return err
	})
}

// TestRecordsThatCannotBeRemoved: a name server that does not answer the removal of a record keeps neither the outcome of an
// order nor the wait before its next attempt from being recorded.
func TestRecordsThatCannotBeRemoved(t *testing.T) {
	e := newEnv(t, pebbletest.Start(t, pebbletest.Config{}))
	e.mu.Lock()
	e.hang = true
	e.mu.Unlock()
	e.start("node-a", nil, func(r *Orders) { r.CleanupTime = 200 * time.Millisecond })
	e.route("shop.example.com")
	e.issued("shop.example.com", "")
	if ever, now := e.presented("shop.example.com"); ever != 1 || now != 1 {
		t.Errorf("%d records were presented, and %d are there", ever, now)
	}
}

// TestKilledServerIsContinued: wherever a server dies, the next one ends its order,
// and makes no other.
func TestKilledServerIsContinued(t *testing.T) {
	pebble := pebbletest.Start(t, pebbletest.Config{})
	n := 0
	for died := true; died; {
		n++
		if !t.Run(fmt.Sprint("write ", n), func(t *testing.T) { died = continued(t, pebble, n) }) {
			return
		}
	}
	if n < 6 {
		t.Errorf("only %d writes", n-1)
	}
}

// continued has a server die with its nth write, and the next one continue. It reports
// false if the server has fewer writes.
func continued(t *testing.T, pebble *pebbletest.Server, n int) bool {
	e := newEnv(t, pebble)
	host := fmt.Sprintf("n%d.example.com", n) // with authorizations of its own
	m := newMortal(e.store, n)
	stop := e.start("node-a", m)
	e.route(host)
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait.NoError(t, "death or certificate", func() error {
			select {
			case <-m.died:
				return nil
			default:
			}
			o, err := e.order(host)
			if err == nil && o.Status.Phase != certificate.OrderPhaseIssued {
				err = fmt.Errorf("%+v", o.Status)
			}
			return err
		}, wait.Within(time.Minute))
	}()
	<-done
	stop()
	// It may be another node: then the order is taken over when the claim has ended.
	next := "node-a"
	if n%2 == 0 {
		next = "node-b"
		if o, err := e.order(host); err == nil && o.Status.ServerUntil != nil {
			past := time.Now().Add(-time.Second)
			o.Status.ServerUntil = &past
			if err := entity.UpdateStatus(t.Context(), e.store, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop = e.start(next, nil)
	e.issued(host, "")
	stop()
	if ever, now := e.presented(host); ever != 1 || now != 0 {
		t.Errorf("death with write %d: %d records were presented, %d are left", n, ever, now)
	}
	select {
	case <-m.died:
		return true
	default:
		return false
	}
}

// TestServersShareOrders: of the servers of a store one orders each certificate.
func TestServersShareOrders(t *testing.T) {
	e := newEnv(t, pebbletest.Start(t, pebbletest.Config{}))
	for _, server := range []string{"node-a", "node-b", "node-c"} {
		e.start(server, nil)
	}
	var hosts []string
	for i := range 6 {
		hosts = append(hosts, fmt.Sprintf("s%d.example.com", i))
		e.route(hosts[i])
	}
	for _, host := range hosts {
		e.issued(host, "")
		if ever, _ := e.presented(host); ever != 1 {
			t.Errorf("%s was ordered %d times", host, ever)
		}
	}
	accounts, _, err := entity.List[certificate.AcmeAccount](t.Context(), e.store, entity.Query{})
	if err != nil || len(accounts) != 1 {
		t.Errorf("%d accounts, %v", len(accounts), err)
	}
}

// TestRateLimitIsKept: after the authority asks for a pause no host asks it again.
func TestRateLimitIsKept(t *testing.T) {
	var asked int
	var authority *httptest.Server
	authority = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Replay-Nonce", "nonce")
		switch r.URL.Path {
		case "/dir":
			fmt.Fprintf(w, `{"newNonce":"%[1]s/nonce","newAccount":"%[1]s/account","newOrder":"%[1]s/order"}`, authority.URL)
		case "/account":
			asked++ // the account is registered by one at a time
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "7200")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many registrations"}`)
		}
	}))
	t.Cleanup(authority.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEnv(t, &pebbletest.Server{Directory: authority.URL + "/dir", CAFile: ca})
	var orders *Orders
	stop := e.start("node-a", nil, func(r *Orders) { orders = r })
	e.route("first.example.com")
	wait.NoError(t, "the limit is recorded", func() error {
		o, err := e.order("first.example.com")
		if err == nil && (!strings.Contains(o.Status.Message, "too many registrations") || time.Until(timeOf(o.Status.NextAttempt)) < time.Hour) {
			err = fmt.Errorf("%+v", o.Status)
		}
		return err
	})
	e.route("second.example.com")
	wait.NoError(t, "the second order waits", func() error {
		o, err := e.order("second.example.com")
		if err != nil {
			return err
		}
		if again, err := orders.Reconcile(t.Context(), o.ID); err != nil || again < time.Hour {
			return fmt.Errorf("again in %s, %v", again, err)
		}
		return nil
	})
	stop()
	if asked != 1 {
		t.Errorf("the authority was asked %d times", asked)
	}
}

func TestRetriesBecomeRarer(t *testing.T) {
	r := &Orders{}
	for n := int64(1); n < 40; n++ {
		want := certificate.MaxRetry
		if n < 20 {
			want = min(want, certificate.FirstRetry<<(n-1))
		}
		if d := r.wait(n); d < want*9/10 || d > want*11/10+1 {
			t.Errorf("after %d attempts: %s, about %s", n, d, want)
		}
	}
}
