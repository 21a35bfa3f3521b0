package etcdstore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/etcdtest"
)

// Variables of the environment of a child, which runs the script.
const (
	childURL  = "ETCDSTORE_TEST_URL"  // of the store
	childKill = "ETCDSTORE_TEST_KILL" // before or after which write it is killed
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		n, err := strconv.Atoi(os.Getenv(childKill))
		if err == nil {
			err = child(url, n)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writesOf is an interceptor of the calls that write.
func writesOf(f func(invoke func() error) error) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		invoke := func() error { return invoker(ctx, method, req, reply, cc, opts...) }
		if strings.HasSuffix(method, "/Txn") || strings.HasSuffix(method, "/Put") || strings.HasSuffix(method, "/DeleteRange") {
			return f(invoke)
		}
		return invoke()
	})
}

// child runs the script, tells how far it is, and kills itself: at an odd n before
// a write is sent, at an even one when it was answered.
func child(url string, n int) error {
	var at atomic.Int64
	count := func() {
		if at.Add(1) == int64(n) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	s, err := etcdstore.Open(context.Background(), etcdstore.Config{
		URL: url, Kinds: storetest.Kinds(), DialOptions: []grpc.DialOption{writesOf(func(invoke func() error) error {
			count()
			err := invoke()
			count()
			return err
		})},
	})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := prepare(s); err != nil {
		return err
	}
	fmt.Println(0)
	for i := 1; i <= steps; i++ {
		if err := step(s, i); err != nil {
			return err
		}
		fmt.Println(i)
	}
	fmt.Println("done")
	return nil
}

// steps is how many transactions the script has.
const steps = 5

const (
	project = schema.ID("proj-p")
	counter = schema.ID("thing-counter")
)

// prepare makes what every step of the script changes.
func prepare(s *etcdstore.Store) error {
	ctx := context.Background()
	if err := entity.Create(ctx, s, &storetest.Project{Meta: schema.Meta{ID: project}}); err != nil {
		return err
	}
	return entity.Create(ctx, s, &storetest.Thing{Meta: schema.Meta{ID: counter, Project: project}, Spec: storetest.ThingSpec{Color: "counter"}})
}

// pair returns the ids of the two things of a step.
func pair(i int) [2]schema.ID {
	return [2]schema.ID{schema.ID(fmt.Sprintf("thing-a%d", i)), schema.ID(fmt.Sprintf("thing-b%d", i))}
}

// step is one transaction, and then one record of history: it makes a pair that
// refer to each other, counts, and deletes the pair of three steps before by one
// of them.
func step(s *etcdstore.Store, i int) error {
	ctx := context.Background()
	p := pair(i)
	a := &storetest.Thing{Meta: schema.Meta{ID: p[0], Project: project, Name: string(p[0])}, Spec: storetest.ThingSpec{Color: "a", Size: int64(i), Global: string(p[0])}}
	b := &storetest.Thing{Meta: schema.Meta{ID: p[1], Project: project}, Spec: storetest.ThingSpec{Color: "b", Owner: p[0], Weight: make([]byte, 5000)}}
	ops := []entity.Op{entity.AddOp(storetest.ThingKind, counter, entity.Addition{Attr: "status.count", Delta: 1})}
	add := func(op entity.Op, err error) error {
		ops = append(ops, op)
		return err
	}
	err := errors.Join(add(entity.CreateOp(a)), add(entity.CreateOp(b)))
	if i > 3 {
		old, e := entity.Get[storetest.Thing](ctx, s, pair(i - 3)[0])
		if e != nil {
			return e
		}
		err = errors.Join(err, add(entity.DeleteOp(old)))
	}
	if err != nil {
		return err
	}
	if _, err := s.Txn(ctx, entity.TxnRequest{RequestID: fmt.Sprint(i), Ops: ops}); err != nil {
		return err
	}
	return s.Append(ctx, entity.HistoryRecord{Stream: entity.StreamAudit, Action: "step", RequestID: fmt.Sprint(i)})
}

// verify opens a store after a crash and returns how many steps it has. Each is
// there as a whole, and the store can be used.
func verify(t *testing.T, url string) int {
	t.Helper()
	s := open(t, etcdstore.Config{URL: url})
	defer s.Close()
	c, err := entity.Get[storetest.Thing](t.Context(), s, counter)
	if err != nil {
		t.Fatalf("the counter: %v", err)
	}
	n := int(c.Status.Count)
	want := []schema.ID{counter}
	for i := max(1, n-2); i <= n; i++ {
		p := pair(i)
		want = append(want, p[:]...)
	}
	slices.Sort(want)
	page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	var got []schema.ID
	for _, r := range page.Records {
		got = append(got, r.ID)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("after %d steps: %q, want %q", n, got, want)
	}
	// The log has every change: a create, a create and an update for each step, and
	// two deletions from the fourth on.
	w, err := s.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}, From: schema.Token{Epoch: page.Token.Epoch}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	changes := 0
	for bookmark := false; !bookmark; {
		for _, e := range next(t, w) {
			if bookmark = e.Type == entity.EventBookmark; !bookmark {
				changes++
			}
		}
	}
	if want := 1 + 3*n + 2*max(0, n-3); changes != want || page.Token.Revision != schema.Revision(n+2) {
		t.Fatalf("after %d steps: %d changes in the log, want %d; revision %d", n, changes, want, page.Token.Revision)
	}
	// The history is one step behind at most.
	records, err := s.Records(t.Context(), entity.HistoryQuery{Stream: entity.StreamAudit, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := 0
	if len(records.Records) > 0 {
		h, _ = strconv.Atoi(records.Records[0].RequestID)
	}
	if h != n && h != n-1 {
		t.Fatalf("after %d steps the history ends at %d", n, h)
	}
	if err := step(s, n+1); err != nil {
		t.Fatalf("the next step: %v", err)
	}
	return n
}

// run runs a child and returns the last step that it acknowledged, -1 if it did
// not get that far.
func run(t *testing.T, url string, n int) (acked int, done bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childURL+"="+url, fmt.Sprintf("%s=%d", childKill, n))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	acked = -1
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if done = lines.Text() == "done"; done {
			continue
		}
		if acked, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
	}
	var exit *exec.ExitError
	if err = cmd.Wait(); !done && errors.As(err, &exit) {
		if st, _ := exit.Sys().(syscall.WaitStatus); !st.Signaled() {
			t.Fatalf("the child failed: %s", &stderr)
		}
	}
	return acked, done
}

// TestKilledAtEveryWrite: a process that is killed before or after any write leaves
// every transaction that it acknowledged, and no part of another one.
func TestKilledAtEveryWrite(t *testing.T) {
	etcd := etcdtest.Start(t)
	for n := 1; ; n++ {
		url := fmt.Sprintf("%s/%d", etcd.URL(t), n)
		acked, done := run(t, url, n)
		if done {
			if n < 4*steps {
				t.Errorf("only %d writes", n)
			}
			t.Logf("%d writes", n-1)
			return
		}
		if acked < 0 {
			continue // it was killed while it prepared
		}
		if got := verify(t, url); got != acked && got != acked+1 {
			t.Fatalf("killed at write %d after step %d: the store has %d steps", n, acked, got)
		}
	}
}
