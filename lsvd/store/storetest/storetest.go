// Package storetest is the conformance suite of object stores.
package storetest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Run checks that stores made by open, each empty, keep the contract.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for name, test := range map[string]func(*testing.T, store.Store){
		"objects": objects, "ranges": ranges, "replace": replace, "list": list,
		"keys": keys, "one creator": oneCreator, "one replacer": oneReplacer,
		"create beside delete": createBesideDelete, "canceled": canceled,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func want(t *testing.T, err error, class errs.Class) {
	t.Helper()
	if errs.ClassOf(err) != class {
		t.Fatalf("error %v has class %q, want %q", err, errs.ClassOf(err), class)
	}
}

func objects(t *testing.T, s store.Store) {
	ctx := t.Context()
	_, _, err := s.Get(ctx, "a/b")
	want(t, err, errs.NotFound)
	body := bytes.Repeat([]byte("x"), 100_000)
	v, err := s.Create(ctx, "a/b", body)
	want(t, err, "")
	body[0] = 'y' // the store keeps no reference
	got, gv, err := s.Get(ctx, "a/b")
	want(t, err, "")
	if got[0] != 'x' || len(got) != len(body) || gv != v {
		t.Fatalf("got %d bytes of version %s, want version %s", len(got), gv, v)
	}
	_, err = s.Create(ctx, "a/b", []byte("other"))
	want(t, err, errs.AlreadyExists)
	want(t, s.Delete(ctx, "a/b"), "")
	want(t, s.Delete(ctx, "a/b"), "")
	_, _, err = s.Get(ctx, "a/b")
	want(t, err, errs.NotFound)
	_, err = s.Create(ctx, "a/b", nil)
	want(t, err, "")
	got, _, err = s.Get(ctx, "a/b")
	want(t, err, "")
	if len(got) != 0 {
		t.Fatalf("empty object has %d bytes", len(got))
	}
}

func ranges(t *testing.T, s store.Store) {
	ctx := t.Context()
	_, err := s.Create(ctx, "r", []byte("0123456789"))
	want(t, err, "")
	for _, c := range []struct {
		off, n int64
		want   string
		class  errs.Class
	}{
		{0, 10, "0123456789", ""}, {3, 4, "3456", ""}, {8, 5, "89", ""}, {10, 1, "", ""},
		{11, 1, "", errs.InvalidArgument}, {-1, 2, "", errs.InvalidArgument},
	} {
		got, err := s.GetRange(ctx, "r", c.off, c.n)
		want(t, err, c.class)
		if string(got) != c.want {
			t.Errorf("range %d+%d is %q, want %q", c.off, c.n, got, c.want)
		}
	}
	_, err = s.GetRange(ctx, "none", 0, 1)
	want(t, err, errs.NotFound)
}

func replace(t *testing.T, s store.Store) {
	ctx := t.Context()
	_, err := s.Replace(ctx, "m", []byte("1"), "v")
	want(t, err, errs.NotFound)
	v1, err := s.Create(ctx, "m", []byte("1"))
	want(t, err, "")
	v2, err := s.Replace(ctx, "m", []byte("2"), v1)
	want(t, err, "")
	_, err = s.Replace(ctx, "m", []byte("3"), v1)
	want(t, err, errs.Conflict)
	got, v, err := s.Get(ctx, "m")
	want(t, err, "")
	if string(got) != "2" || v != v2 {
		t.Fatalf("got %q version %s, want 2 version %s", got, v, v2)
	}
}

func list(t *testing.T, s store.Store) {
	ctx := t.Context()
	all := []string{"a", "b/1", "b/2/x", "b/2/y", "b-1", "bc"}
	for i, k := range all {
		_, err := s.Create(ctx, k, make([]byte, i))
		want(t, err, "")
	}
	for prefix, keys := range map[string][]string{
		"": {"a", "b-1", "b/1", "b/2/x", "b/2/y", "bc"}, "b/": {"b/1", "b/2/x", "b/2/y"},
		"b/2": {"b/2/x", "b/2/y"}, "b": {"b-1", "b/1", "b/2/x", "b/2/y", "bc"}, "z/": nil,
	} {
		var got []string
		for i, err := range s.List(ctx, prefix) {
			want(t, err, "")
			got = append(got, i.Key)
			if int(i.Size) != slices.Index(all, i.Key) {
				t.Errorf("%s has size %d", i.Key, i.Size)
			}
		}
		if !slices.Equal(got, keys) {
			t.Errorf("list %q is %v, want %v", prefix, got, keys)
		}
	}
	for range s.List(ctx, "") {
		break
	}
}

func keys(t *testing.T, s store.Store) {
	for _, k := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a/.b", "a b", "a\x00"} {
		_, err := s.Create(t.Context(), k, nil)
		want(t, err, errs.InvalidArgument)
		_, _, err = s.Get(t.Context(), k)
		want(t, err, errs.InvalidArgument)
		want(t, s.Delete(t.Context(), k), errs.InvalidArgument)
	}
}

func oneCreator(t *testing.T, s store.Store) {
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			_, err := s.Create(t.Context(), "same", fmt.Appendf(nil, "%d", i))
			if err == nil {
				won.Add(1)
			} else if !errs.Is(err, errs.AlreadyExists) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d creators won", won.Load())
	}
}

func oneReplacer(t *testing.T, s store.Store) {
	ctx := t.Context()
	_, err := s.Create(ctx, "n", []byte("0"))
	want(t, err, "")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for done := 0; done < 5; {
				data, v, err := s.Get(ctx, "n")
				if err != nil {
					t.Error(err)
					return
				}
				var n int
				fmt.Sscan(string(data), &n)
				_, err = s.Replace(ctx, "n", fmt.Appendf(nil, "%d", n+1), v)
				if err == nil {
					done++
				} else if !errs.Is(err, errs.Conflict) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got, _, _ := s.Get(ctx, "n"); string(got) != "20" {
		t.Fatalf("20 increments made %s", got)
	}
}

func createBesideDelete(t *testing.T, s store.Store) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 10 {
				key := fmt.Sprintf("d/e/%d", i)
				// A server may refuse one while the other takes the directory
				// away, if it says that the outcome is unknown.
				_, err := s.Create(t.Context(), key, []byte("x"))
				for try := 0; try < 20 && errs.Is(err, errs.Unavailable); try++ {
					if _, err = s.Create(t.Context(), key, []byte("x")); errs.Is(err, errs.AlreadyExists) {
						err = nil
					}
				}
				if err != nil {
					t.Error(err)
				}
				if err := s.Delete(t.Context(), key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func canceled(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Create(ctx, "c", nil)
	want(t, err, errs.Canceled)
	_, _, err = s.Get(t.Context(), "c")
	want(t, err, errs.NotFound)
}
