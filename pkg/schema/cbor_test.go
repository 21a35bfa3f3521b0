package schema

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

type codecSample struct {
	Name  string            `cbor:"1,keyasint,omitempty"`
	When  time.Time         `cbor:"2,keyasint"`
	For   time.Duration     `cbor:"3,keyasint"`
	Map   map[string]string `cbor:"30,keyasint,omitempty"`
	Count *int64            `cbor:"5,keyasint,omitempty"`
	Float float64           `cbor:"6,keyasint"`
}

func TestCBORRoundTrip(t *testing.T) {
	zero := int64(0)
	in := codecSample{
		Name: "not utf-8: \xff\xfe", When: time.Date(2024, 2, 3, 4, 5, 6, 123456789, time.FixedZone("x", 3600)),
		For: 250 * time.Millisecond, Map: map[string]string{"b": "1", "a": "2", "": "3"}, Count: &zero, Float: math.Pi,
	}
	b, err := Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Marshal(in)
		if err != nil || !bytes.Equal(b, again) {
			t.Fatalf("not deterministic: %x %x %v", b, again, err)
		}
	}
	var out codecSample
	if err := Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if !out.When.Equal(in.When) || out.Name != in.Name || out.For != in.For || len(out.Map) != 3 || out.Count == nil || *out.Count != 0 || out.Float != in.Float {
		t.Errorf("got %+v, want %+v", out, in)
	}
	again, err := Marshal(out)
	if err != nil || !bytes.Equal(b, again) {
		t.Errorf("the decoded value encodes differently: %x %x %v", b, again, err)
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	deep := strings.Repeat("\x81", maxNesting+1) + "\x00"
	for name, in := range map[string]string{
		"nothing":           "",
		"cut short":         "\xa1\x01\x65ab",
		"trailing bytes":    "\xa0\xa0",
		"indefinite length": "\xbf\x01\x61a\xff",
		"tag":               "\xa1\x01\xc1\x01",
		"repeated key":      "\xa2\x01\x61a\x01\x61b",
		"nested deeply":     "\xa1\x18\x63" + deep,
		"huge list":         "\xa1\x18\x63\x9a\xff\xff\xff\xff",
		"wrong type":        "\xa1\x01\x01",
		"too long":          strings.Repeat("\x00", MaxEncoded+1),
	} {
		var out codecSample
		if err := Unmarshal([]byte(in), &out); !errs.Is(err, errs.Corrupt) {
			t.Errorf("%s: got %v, want class corrupt", name, err)
		}
	}
	var out codecSample
	if err := Unmarshal([]byte("\xa1\x18\x63\x01"), &out); err != nil {
		t.Errorf("unknown field: %v", err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	b, err := Marshal(codecSample{Name: "x", Map: map[string]string{"a": "b"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("\xa1\x01\x61a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v, w codecSample
		if Unmarshal(b, &v) != nil {
			return
		}
		enc, err := Marshal(v)
		if err != nil {
			return // a time outside the range of RFC 3339
		}
		if err := Unmarshal(enc, &w); err != nil {
			t.Fatalf("what was encoded does not decode: %v", err)
		}
		again, err := Marshal(w)
		if err != nil || !bytes.Equal(enc, again) {
			t.Fatalf("%x became %x (%v)", enc, again, err)
		}
	})
}
