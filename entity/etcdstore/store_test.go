package etcdstore_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/etcdtest"
	"miren.dev/runtime/testsupport/wait"
)

// TestTooLarge: what etcd does not accept is refused with its limits, and nothing
// of it is there; other limits are those of the URL.
func TestTooLarge(t *testing.T) {
	etcd := etcdtest.Start(t, "--max-txn-ops=400")
	many := func(n int) entity.TxnRequest {
		var ops []entity.Op
		for i := range n {
			op, err := entity.CreateOp(&storetest.Thing{Meta: schema.Meta{ID: schema.ID(fmt.Sprintf("thing-%d", i)), Project: project}, Spec: storetest.ThingSpec{Color: "red"}})
			if err != nil {
				t.Fatal(err)
			}
			ops = append(ops, op)
		}
		return entity.TxnRequest{Ops: ops}
	}
	s := open(t, etcdstore.Config{URL: etcd.URL(t)})
	if err := prepare(s); err != nil {
		t.Fatal(err)
	}
	_, err := s.Txn(t.Context(), many(200))
	if !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), "128") {
		t.Errorf("200 creations: %v", err)
	}
	large := &storetest.Thing{Meta: schema.Meta{Project: project}, Spec: storetest.ThingSpec{Color: "red", Weight: make([]byte, 600<<10)}}
	if err := entity.Create(t.Context(), s, large); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("an entity of 600 KiB: %v", err)
	}
	page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil || len(page.Records) != 1 {
		t.Errorf("%d things, %v", len(page.Records), err)
	}
	// An entity of nearly the most can be created, updated and deleted.
	large = &storetest.Thing{Meta: schema.Meta{Project: project}, Spec: storetest.ThingSpec{Color: "red", Weight: make([]byte, 450<<10)}}
	if err := entity.Create(t.Context(), s, large); err != nil {
		t.Fatal(err)
	}
	large.Spec.Size = 2
	if err := entity.UpdateSpec(t.Context(), s, large); err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), s, large); err != nil {
		t.Fatal(err)
	}
	s = open(t, etcdstore.Config{URL: etcd.URL(t) + "?max_txn_ops=400"})
	if _, err := s.Txn(t.Context(), many(200)); err != nil {
		t.Errorf("200 creations where etcd accepts 400 operations: %v", err)
	}
}

// TestCompact: the log is cut to its bounds; below them is compacted, in watches
// and in lists; above them both go on, also in a server that starts later.
func TestCompact(t *testing.T) {
	etcd := etcdtest.Start(t)
	url := etcd.URL(t)
	s := open(t, etcdstore.Config{URL: url})
	if err := prepare(s); err != nil {
		t.Fatal(err)
	}
	first, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := count(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	middle, err := s.List(t.Context(), entity.Query{Kind: "thing", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := count(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Compact(t.Context(), time.Hour, 10); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, etcdstore.Config{URL: url})
	if _, err := s.Watch(t.Context(), entity.WatchQuery{From: first.Token}); !errs.Is(err, errs.Compacted) {
		t.Errorf("a watch from before the floor: %v", err)
	}
	w, err := s.Watch(t.Context(), entity.WatchQuery{IDs: []schema.ID{counter}, From: middle.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if evs := next(t, w); len(evs) == 0 || evs[0].Record.Revision != middle.Token.Revision+1 {
		t.Errorf("the watch goes on with %+v", evs)
	}
	// By time.
	if err := s.Compact(t.Context(), -time.Minute, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Watch(t.Context(), entity.WatchQuery{From: middle.Token}); !errs.Is(err, errs.Compacted) {
		t.Errorf("a watch from before the time: %v", err)
	}
	if n := counted(t, s); n != 25 {
		t.Errorf("counted %d", n)
	}
}

func repeatable(id string) entity.TxnRequest {
	return entity.TxnRequest{RequestID: id, Ops: []entity.Op{entity.AddOp(storetest.ThingKind, counter, entity.Addition{Attr: "status.count", Delta: 1})}}
}

// TestFellBehind: a server whose position is not in the log any more loads
// everything again.
func TestFellBehind(t *testing.T) {
	etcd := etcdtest.Start(t)
	url := etcd.URL(t)
	a := open(t, etcdstore.Config{URL: url})
	if err := prepare(a); err != nil {
		t.Fatal(err)
	}
	old, err := a.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, etcdstore.Config{URL: url})
	release := b.HoldReplica()
	for i := range 10 {
		if _, err := a.Txn(t.Context(), repeatable(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.DropLog(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := a.Keys()(t, etcd.Address, "log/") + a.Keys()(t, etcd.Address, "req/"); n != 0 {
		t.Errorf("%d keys of the log are left", n)
	}
	release()
	page, err := b.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil || page.Token.Revision != old.Token.Revision+10 || page.Token.Epoch != old.Token.Epoch {
		t.Fatalf("%+v, %v", page.Token, err)
	}
	if err := count(t.Context(), b); err != nil || counted(t, a) != 11 {
		t.Errorf("%d, %v", counted(t, a), err)
	}
}

// TestNewEpoch: tokens of before are refused by every server.
func TestNewEpoch(t *testing.T) {
	etcd := etcdtest.Start(t)
	a := open(t, etcdstore.Config{URL: etcd.URL(t)})
	b := open(t, etcdstore.Config{URL: etcd.URL(t)})
	if err := prepare(a); err != nil {
		t.Fatal(err)
	}
	old, err := b.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.NewEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*etcdstore.Store{"a": a, "b": b} {
		page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
		if err != nil || page.Token.Epoch == old.Token.Epoch || page.Token.Revision != old.Token.Revision {
			t.Errorf("%s: %+v, %v", name, page.Token, err)
		}
		if _, err := s.Watch(t.Context(), entity.WatchQuery{From: old.Token}); !errs.Is(err, errs.Compacted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLeasesAfterOutage: a lease whose holder could not renew, since no server ran,
// has its full time again; then it lapses.
func TestLeasesAfterOutage(t *testing.T) {
	etcd := etcdtest.Start(t)
	url := etcd.URL(t)
	s := open(t, etcdstore.Config{URL: url})
	if err := prepare(s); err != nil {
		t.Fatal(err)
	}
	l, err := s.Grant(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	o := &storetest.Thing{Meta: schema.Meta{ID: "thing-leased", Project: project, Lease: l.ID}, Spec: storetest.ThingSpec{Color: "red"}}
	if err := entity.Create(t.Context(), s, o); err != nil {
		t.Fatal(err)
	}
	s.Close()
	keys := s.Keys()
	wait.For(t, "everything bound to etcd's leases gone", func() bool { return keys(t, etcd.Address, "alive/")+keys(t, etcd.Address, "looked/") == 0 })
	if eval.LeaseGap < time.Second {
		t.Fatal("the gap is shorter than the lease")
	}
	s = open(t, etcdstore.Config{URL: url})
	if _, err := s.KeepAlive(t.Context(), l.ID); err != nil {
		t.Errorf("after the outage: %v", err)
	}
	wait.For(t, "the end of the lease", func() bool {
		_, err := s.Get(t.Context(), "thing", o.ID)
		return errs.Is(err, errs.NotFound)
	})
}

// TestRotateHistory: records that are older than their stream keeps are dropped.
func TestRotateHistory(t *testing.T) {
	etcd := etcdtest.Start(t)
	s := open(t, etcdstore.Config{URL: etcd.URL(t)})
	for _, stream := range []entity.Stream{entity.StreamAudit, entity.StreamEvent} {
		if err := s.Append(t.Context(), entity.HistoryRecord{Stream: stream, Action: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RotateHistory(t.Context(), map[entity.Stream]time.Duration{entity.StreamAudit: -time.Minute}); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[entity.Stream]int{entity.StreamAudit: 0, entity.StreamEvent: 1} {
		page, err := s.Records(t.Context(), entity.HistoryQuery{Stream: stream})
		if err != nil || len(page.Records) != want {
			t.Errorf("%s: %d records, %v", stream, len(page.Records), err)
		}
	}
}

// TestTLS: a store reaches an etcd that demands certificates, and only with one.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	etcd := etcdtest.StartTLS(t, certFile, keyFile)
	s := open(t, etcdstore.Config{URL: etcd.URL(t) + "?cacert=" + certFile + "&cert=" + certFile + "&key=" + keyFile})
	if err := prepare(s); err != nil {
		t.Fatal(err)
	}
	for name, params := range map[string]string{"no TLS": "", "no certificate": "?cacert=" + certFile, "an unknown CA": "?tls=true&cert=" + certFile + "&key=" + keyFile} {
		_, err := etcdstore.Open(t.Context(), etcdstore.Config{URL: etcd.URL(t) + params, Kinds: storetest.Kinds(), RetryFor: time.Second, Attempt: time.Second})
		if !errs.Is(err, errs.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseURL(t *testing.T) {
	target, err := etcdstore.ParseURL("etcd://a:2379,[::1]:2380/site/runtime/?max_txn_ops=500&max_request_bytes=4000000&username=u&tls=true")
	if err != nil || !slices.Equal(target.Endpoints, []string{"https://a:2379", "https://[::1]:2380"}) || target.Prefix != "/site/runtime/" ||
		target.Limits != (etcdstore.Limits{Ops: 500, RequestBytes: 4_000_000}) || target.Username != "u" || target.TLS == nil {
		t.Errorf("%+v, %v", target, err)
	}
	for _, url := range []string{
		"etcd://a:1", "etcd://a:1/", "etcd:///p", "etcd://a/p", "etcd://a:1,/p", "etcd://a:1/p?other=1", "etcd://a:1/p?tls=maybe", "etcd://a:1/p?cert=x",
		"etcd://a:1/p?max_txn_ops=0", "etcd://a:1/p?cacert=/does/not/exist", "postgres://a/p",
	} {
		if _, err := etcdstore.ParseURL(url); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
