package eval

import (
	"time"

	"github.com/fxamacker/cbor/v2"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Key names an entity.
type Key struct{ Kind, ID string }

// KeyOf returns the key of a record.
func KeyOf(r *schema.Record) Key { return Key{r.Kind, string(r.ID)} }

// Object is one version of an entity. It is immutable and shared.
type Object struct {
	Rec *schema.Record
	Raw []byte            // encoded rec, as stored
	Ext *schema.Extracted // nil until it is needed
}

// stored is the format of a record in the database. It grows by addition.
type stored struct {
	Kind     string            `cbor:"1,keyasint"`
	ID       string            `cbor:"2,keyasint"`
	Project  string            `cbor:"3,keyasint,omitempty"`
	Name     string            `cbor:"4,keyasint,omitempty"`
	Labels   map[string]string `cbor:"5,keyasint,omitempty"`
	Lease    string            `cbor:"6,keyasint,omitempty"`
	Revision int64             `cbor:"7,keyasint"`
	SpecRev  int64             `cbor:"8,keyasint"`
	StatRev  int64             `cbor:"9,keyasint"`
	CreaRev  int64             `cbor:"10,keyasint"`
	Created  int64             `cbor:"11,keyasint"` // microseconds since 1970
	Updated  int64             `cbor:"12,keyasint"`
	Spec     []byte            `cbor:"13,keyasint,omitempty"`
	Status   []byte            `cbor:"14,keyasint,omitempty"`
}

// storedValue is the format of an indexed value in the log.
type storedValue struct {
	_     struct{} `cbor:",toarray"`
	Attr  string
	Value []byte
}

// encodeValues returns nil for none.
func encodeValues(list []schema.IndexEntry) ([]byte, error) {
	if len(list) == 0 {
		return nil, nil
	}
	out := make([]storedValue, len(list))
	for i, x := range list {
		out[i] = storedValue{Attr: x.Attr, Value: x.Value}
	}
	return EncMode.Marshal(out)
}

// DecodeValues decodes what LogRow.Departed holds.
func DecodeValues(b []byte) ([]schema.IndexEntry, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var in []storedValue
	if err := DecMode.Unmarshal(b, &in); err != nil {
		return nil, errs.New(errs.Corrupt, "indexed values in the log: %w", err)
	}
	out := make([]schema.IndexEntry, len(in))
	for i, x := range in {
		out[i] = schema.IndexEntry{Attr: x.Attr, Value: x.Value}
	}
	return out, nil
}

var (
	EncMode = must(cbor.EncOptions{Sort: cbor.SortNone}.EncMode())
	DecMode = must(cbor.DecOptions{MaxArrayElements: 1 << 20, MaxMapPairs: 1 << 20}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // the options are constants
	}
	return v
}

func encodeRecord(r *schema.Record) ([]byte, error) {
	return EncMode.Marshal(&stored{
		Kind: r.Kind, ID: string(r.ID), Project: string(r.Project), Name: r.Name, Labels: r.Labels, Lease: string(r.Lease),
		Revision: int64(r.Revision), SpecRev: int64(r.SpecRevision), StatRev: int64(r.StatusRevision), CreaRev: int64(r.CreateRevision),
		Created: r.CreatedAt.UnixMicro(), Updated: r.UpdatedAt.UnixMicro(), Spec: r.Spec, Status: r.Status,
	})
}

// DecodeRecord decodes a record as it is stored.
func DecodeRecord(b []byte) (*schema.Record, error) {
	var s stored
	if err := DecMode.Unmarshal(b, &s); err != nil {
		return nil, errs.New(errs.Corrupt, "stored record: %w", err)
	}
	return &schema.Record{
		Meta: schema.Meta{
			ID: schema.ID(s.ID), Project: schema.ID(s.Project), Name: s.Name, Labels: s.Labels, Lease: schema.LeaseID(s.Lease),
			Revision: schema.Revision(s.Revision), SpecRevision: schema.Revision(s.SpecRev),
			StatusRevision: schema.Revision(s.StatRev), CreateRevision: schema.Revision(s.CreaRev),
			CreatedAt: time.UnixMicro(s.Created).UTC(), UpdatedAt: time.UnixMicro(s.Updated).UTC(),
		},
		Kind: s.Kind, Spec: s.Spec, Status: s.Status,
	}, nil
}

// DecodeObject decodes a record as it is stored, and keeps raw.
func DecodeObject(raw []byte) (*Object, error) {
	rec, err := DecodeRecord(raw)
	if err != nil {
		return nil, err
	}
	return &Object{Rec: rec, Raw: raw}, nil
}
