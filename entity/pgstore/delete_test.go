package pgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// grow creates n things, several at a time.
func grow(t testing.TB, s entity.Store, project schema.ID, n int, change func(i int, o *thing)) {
	t.Helper()
	for i := 0; i < n; {
		var ops []entity.Op
		for ; i < n && len(ops) < 500; i++ {
			o := newThing(project)
			change(i, o)
			op, err := entity.CreateOp(o)
			if err != nil {
				t.Fatal(err)
			}
			ops = append(ops, op)
		}
		if _, err := s.Txn(t.Context(), entity.TxnRequest{Ops: ops}); err != nil {
			t.Fatal(err)
		}
	}
}

// forest makes a root with n things below it, in three levels, and as many
// clearing references to them from outside as there are in the third.
func forest(t testing.TB, s entity.Store, project schema.ID, n int) *thing {
	t.Helper()
	root := create(t, s, project, func(o *thing) { o.ID = "thing-root" })
	id := func(i int) schema.ID { return schema.ID(fmt.Sprintf("thing-%05d", i)) }
	grow(t, s, project, n, func(i int, o *thing) {
		o.ID, o.Spec.Owner = id(i), root.ID
		switch {
		case i >= n/2:
			o.Spec.Owner = id(20 + i%100)
		case i >= 20:
			o.Spec.Owner = id(i % 20)
		}
	})
	grow(t, s, project, n/10, func(i int, o *thing) { o.Spec.Color, o.Spec.Likes = "outside", id(n-1-i) })
	return root
}

// TestDeletionOfMany: a large deletion is applied in transactions of a bounded
// size, and others write in between. RUNTIME_SOAK makes it 12,000 entities with
// a server's bound.
func TestDeletionOfMany(t *testing.T) {
	n, most := 1500, 125
	if os.Getenv("RUNTIME_SOAK") != "" {
		n, most = 12_000, 1000
	}
	url := pgtest.URL(t)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds(), MaxCascade: most})
	proj := newProject(t, s)
	root := forest(t, s, proj, n)
	before := root.Revision
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stop()
	between := 0
	wg.Go(func() {
		o := create(t, s, proj, func(o *thing) { o.Spec.Color = "outside" })
		for ctx.Err() == nil {
			o.Status.Count++
			if err := entity.UpdateStatus(context.WithoutCancel(ctx), s, o); err != nil {
				t.Error(err)
				return
			}
			between++
		}
	})
	began := time.Now()
	if err := entity.Delete(t.Context(), s, root); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	stop()
	wg.Wait()
	left, _, err := entity.List[thing](t.Context(), s, entity.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range left {
		if o.Spec.Color != "outside" || o.Spec.Likes != "" {
			t.Fatalf("left is %+v", o)
		}
	}
	if len(left) != n/10+1 {
		t.Errorf("%d are left, want %d", len(left), n/10+1)
	}
	largest := number(t, url, `select max(n) from (select count(*) n from runtime.log where revision > $1 and type = 2 group by revision) r`, int64(before))
	if largest > int64(most)+1 {
		t.Errorf("one transaction deleted %d entities", largest)
	}
	if between < n/most/2 {
		t.Errorf("%d writes came in between", between)
	}
	t.Logf("%d deleted in %s, at most %d in a transaction, %d writes in between", n, took, largest, between)
}

// TestDeletionOfChain: a long chain of referrers is deleted completely.
func TestDeletionOfChain(t *testing.T) {
	s := pgtest.Store(t, storetest.Kinds()...)
	proj := newProject(t, s)
	id := func(i int) schema.ID { return schema.ID(fmt.Sprintf("thing-%05d", i)) }
	grow(t, s, proj, 150, func(i int, o *thing) {
		if o.ID = id(i); i > 0 {
			o.Spec.Owner = id(i - 1)
		}
	})
	first, err := entity.Get[thing](t.Context(), s, id(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), s, first); err != nil {
		t.Fatal(err)
	}
	if page, err := s.List(t.Context(), entity.Query{Kind: "thing"}); err != nil || len(page.Records) != 0 {
		t.Errorf("%d are left: %v", len(page.Records), err)
	}
}

// TestDeletionOfCircle: a circle too large for one transaction is refused, and
// stays whole.
func TestDeletionOfCircle(t *testing.T) {
	const n = 400
	s := pgtest.Open(t, pgstore.Config{URL: pgtest.URL(t), Kinds: storetest.Kinds(), MaxCascade: 100})
	proj := newProject(t, s)
	id := func(i int) schema.ID { return schema.ID(fmt.Sprintf("thing-%05d", i%n)) }
	// Twenty circles through one entity.
	grow(t, s, proj, n, func(i int, o *thing) {
		if o.ID = id(i); i > 0 {
			o.Spec.Owner = id(max(0, i-20))
		}
	})
	first, err := entity.Get[thing](t.Context(), s, id(0))
	if err != nil {
		t.Fatal(err)
	}
	first.Spec.Owner = id(n - 1)
	if err := entity.UpdateSpec(t.Context(), s, first); err != nil {
		t.Fatal(err)
	}
	// Each is deleted with all the others, but those outside every circle can
	// be deleted first.
	middle, err := entity.Get[thing](t.Context(), s, id(n/2))
	if err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), s, middle); err != nil {
		t.Fatal(err)
	}
	all, _, err := entity.List[thing](t.Context(), s, entity.Query{})
	if err != nil {
		t.Fatal(err)
	}
	checkReferences(t, all)
}

// checkReferences fails the test if a reference leads nowhere.
func checkReferences(t testing.TB, all []*thing) {
	t.Helper()
	there := map[schema.ID]bool{}
	for _, o := range all {
		there[o.ID] = true
	}
	for _, o := range all {
		for _, id := range []schema.ID{o.Spec.Owner, o.Spec.Needs, o.Spec.Likes, o.Status.Seen} {
			if id != "" && !there[id] {
				t.Fatalf("%s refers to %s, which is gone", o.ID, id)
			}
		}
	}
}

// deleteURL makes the test binary delete the root of a forest in a database.
const deleteURL = "PGSTORE_TEST_DELETE"

func TestMain(m *testing.M) {
	if url := os.Getenv(deleteURL); url != "" {
		if err := deleteRoot(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv(appendURL); url != "" {
		fmt.Fprintln(os.Stderr, appendForever(url))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func deleteRoot(url string) error {
	ctx := context.Background()
	s, err := pgstore.Open(ctx, pgstore.Config{URL: url, Kinds: storetest.Kinds(), MaxCascade: 50})
	if err != nil {
		return err
	}
	defer s.Close()
	root, err := entity.Get[thing](ctx, s, schema.ID("thing-root"))
	if err != nil {
		return err
	}
	return entity.Delete(ctx, s, root)
}

// TestKilledWhileDeleting: a process that is killed within a large deletion
// leaves no reference that leads nowhere. It leaves the named entity, so that
// the next deletion completes it.
func TestKilledWhileDeleting(t *testing.T) {
	const n, kills = 1000, 2
	url := pgtest.URL(t)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	forest(t, s, newProject(t, s), n)
	things := func() []*thing {
		all, _, err := entity.List[thing](t.Context(), s, entity.Query{})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	isRoot := func(o *thing) bool { return o.ID == "thing-root" }
	for round := range kills + 1 {
		w, err := s.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), deleteURL+"="+url), t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if round < kills {
			// Amid the deletion: another moment each time, counted in the events that show deletions.
			for range 1 + rand.N(4) {
				awaitDeletion(t, w)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		err = cmd.Wait()
		all := things()
		checkReferences(t, all)
		if round < kills {
			if !slices.ContainsFunc(all, isRoot) || len(all) == n+n/10+1 {
				t.Fatalf("round %d: %d are left: not killed amid the deletion", round, len(all))
			}
			continue
		}
		if err != nil || slices.ContainsFunc(all, isRoot) || len(all) != n/10 {
			t.Fatalf("%d are left after the deletion: %v", len(all), err)
		}
	}
}

func awaitDeletion(t testing.TB, w entity.Watch) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	for {
		evs, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range evs {
			if e.Type == entity.EventDelete {
				return
			}
		}
	}
}

// TestRevocationGivenUp: when a caller gives up while a lease with many
// entities ends, the lease can neither be renewed nor get new entities, and the
// store ends it without the caller.
func TestRevocationGivenUp(t *testing.T) {
	url := pgtest.URL(t)
	open := func(expire time.Duration) *pgstore.Store {
		return pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds(), MaxCascade: 10, ExpireInterval: expire})
	}
	s := open(time.Hour)
	proj := newProject(t, s)
	l, err := s.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	grow(t, s, proj, 500, func(_ int, o *thing) { o.Lease = l.ID })
	w, err := s.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	revoked := make(chan error, 1)
	go func() { revoked <- s.Revoke(ctx, l.ID) }()
	awaitDeletion(t, w)
	giveUp()
	if err := <-revoked; err == nil {
		t.Fatal("the revocation was complete already")
	}
	left := func() int {
		all, _, err := entity.List[thing](t.Context(), s, entity.Query{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := left(); n == 0 || n == 500 {
		t.Fatalf("%d are left: not amid the revocation", n)
	}
	if _, err := s.KeepAlive(t.Context(), l.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("renew a lease that is ending: %v", err)
	}
	o := newThing(proj)
	o.Lease = l.ID
	if err := entity.Create(t.Context(), s, o); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("bind to a lease that is ending: %v", err)
	}
	open(20 * time.Millisecond)
	wait.For(t, "another server ends the lease", func() bool { return left() == 0 })
}
