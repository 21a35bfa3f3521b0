package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

const plain = "hunter2-very-secret"

func TestSecretIsNeverShown(t *testing.T) {
	s := NewSealer(filepath.Join(t.TempDir(), "key"))
	sec, err := s.Seal(plain)
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		S Secret
		P *Secret
		M map[string]Secret
		L []Secret
		A any
	}
	h := holder{sec, &sec, map[string]Secret{"k": sec}, []Secret{sec}, sec}
	var out []string
	for _, v := range []any{sec, &sec, h, &h} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%o", "%U", "%t", "%e", "%c", "%T %v"} {
			out = append(out, fmt.Sprintf(verb, v, v))
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(b), fmt.Sprint(v), fmt.Sprintln(v))
		for _, h := range []func(*bytes.Buffer) slog.Handler{
			func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
			func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		} {
			var buf bytes.Buffer
			slog.New(h(&buf)).Info("x", "secret", v)
			out = append(out, buf.String())
		}
	}
	text, err := sec.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	enc, err := EncodeJSON(&h)
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, string(text), string(enc), Cell(sec), sec.LogValue().String(), fmt.Errorf("x: %v", sec).Error())
	sealedHex := fmt.Sprintf("%x", sec.sealed[:8])
	sealedList := strings.Trim(fmt.Sprint(sec.sealed[:8]), "[]")
	for _, o := range out {
		for _, leak := range []string{plain, fmt.Sprintf("%x", plain), sealedHex, sealedList, string(sec.sealed[:8])} {
			if strings.Contains(o, leak) {
				t.Errorf("%q shows %q", o, leak)
			}
		}
	}
}

func TestSealOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "key")
	s := NewSealer(path)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the key file is made before its use: %v", err)
	}
	for _, text := range []string{"", plain, strings.Repeat("x", MaxSecret), "\xff\x00"} {
		sec, err := s.Seal(text, "app-1", "DB")
		if err != nil {
			t.Fatal(err)
		}
		b, err := Marshal(map[string]Secret{"k": sec})
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 4 && bytes.Contains(b, []byte(text[:4])) {
			t.Error("plain text in CBOR")
		}
		var back map[string]Secret
		if err := Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		if !back["k"].Equal(sec) {
			t.Error("the sealed bytes changed on the way")
		}
		got, err := NewSealer(path).Open(back["k"], "app-1", "DB") // another process
		if err != nil || got != text {
			t.Errorf("opened %q, %v", clip(got), err)
		}
		for _, ad := range [][]string{nil, {"app-1"}, {"app-1D", "B"}, {"app-2", "DB"}} {
			if _, err := s.Open(sec, ad...); !errs.Is(err, errs.Corrupt) {
				t.Errorf("opened with other associated data %q: %v", ad, err)
			}
		}
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", fi.Mode(), err)
	}
	a, _ := s.Seal(plain)
	b, _ := s.Seal(plain)
	if a.Equal(b) {
		t.Error("two sealings are equal")
	}
	if _, err := s.Seal(strings.Repeat("x", MaxSecret+1)); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("too long: %v", err)
	}
}

func TestSealerRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	s := NewSealer(path)
	sec, err := s.Seal(plain)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sec.sealed {
		bad := Secret{sealed: bytes.Clone(sec.sealed)}
		bad.sealed[i] ^= 1
		if got, err := s.Open(bad); err == nil {
			t.Fatalf("byte %d changed: opened %q", i, got)
		}
		if got, err := s.Open(Secret{sealed: sec.sealed[:i]}); err == nil {
			t.Fatalf("cut to %d: opened %q", i, got)
		}
	}
	if _, err := s.Open(Secret{}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("unsealed: %v", err)
	}
	if _, err := NewSealer(filepath.Join(t.TempDir(), "key")).Open(sec); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("other key: %v", err)
	}
	if _, err := Marshal(Secret{}); err == nil {
		t.Error("an unsealed secret was encoded")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := NewSealer(path).Seal("x"); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key file that others can read: %v", err)
	}
	for _, content := range []string{"", "zz yy\n", "0011223344556677 AAAA\n", "00 " + strings.Repeat("A", 43) + "=\n"} {
		p := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewSealer(p).Seal("x"); err == nil {
			t.Errorf("key file %q was accepted", content)
		}
	}
}

func TestSealerRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	s := NewSealer(path)
	old, err := s.Seal("old")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Rotate(); err != nil {
		t.Fatal(err)
	}
	fresh, err := s.Seal("new")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(old.sealed[1:1+keyIDLen], fresh.sealed[1:1+keyIDLen]) {
		t.Error("the old key still seals")
	}
	for _, x := range []*Sealer{s, NewSealer(path)} {
		for want, sec := range map[string]Secret{"old": old, "new": fresh} {
			if got, err := x.Open(sec); err != nil || got != want {
				t.Errorf("opened %q, %v; want %q", got, err, want)
			}
		}
	}
}

func TestSealersRaceToMakeTheKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	secrets := make([]Secret, 8)
	var wg sync.WaitGroup
	for i := range secrets {
		wg.Go(func() {
			var err error
			if secrets[i], err = NewSealer(path).Seal(plain); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := NewSealer(path)
	for _, sec := range secrets {
		if got, err := s.Open(sec); err != nil || got != plain {
			t.Errorf("opened %q, %v", got, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".key-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}
