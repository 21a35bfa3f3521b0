package etcdstore

import (
	"fmt"
	"math"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// keys names the keys of a store. Numbers are hexadecimal with 16 digits, so that
// keys have their order.
type keys struct{ prefix string }

func (k keys) state() string                { return k.prefix + "state" }
func (k keys) floor() string                { return k.prefix + "floor" }  // the oldest revision that can be resumed from
func (k keys) moving() string               { return k.prefix + "moving" } // a copy into the store has not ended
func (k keys) entities() string             { return k.prefix + "e/" }
func (k keys) entity(e eval.Key) string     { return k.prefix + "e/" + e.Kind + "/" + e.ID }
func (k keys) log(r schema.Revision) string { return fmt.Sprintf("%slog/%016x", k.prefix, int64(r)) }
func (k keys) request(id string) string     { return k.prefix + "req/" + id }
func (k keys) lease(id string) string       { return k.prefix + "lease/" + id }
func (k keys) alive(id string) string       { return k.prefix + "alive/" + id }
func (k keys) looked(id string) string      { return k.prefix + "looked/" + id }
func (k keys) appended() string             { return k.prefix + "appended" } // time of the newest record of history

// history names the chunk of records whose newest has a time, in microseconds
// since 1970. Newer ones come first.
func (k keys) history(s entity.Stream, at int64) string {
	return fmt.Sprintf("%sh/%s/%016x", k.prefix, s, uint64(math.MaxInt64-at))
}

// historyEnd follows every key of a stream.
func (k keys) historyEnd(s entity.Stream) string {
	return clientv3.GetPrefixRangeEnd(fmt.Sprintf("%sh/%s/", k.prefix, s))
}

// format is the version of what is stored. A program refuses a later one.
const format = 1

// The values of keys. They grow by addition.
type (
	storedState struct {
		Format   int    `cbor:"1,keyasint"`
		Revision int64  `cbor:"2,keyasint"`
		Epoch    string `cbor:"3,keyasint"`
		Origin   uint64 `cbor:"4,keyasint"` // id of the cluster; another one: this is a copy
	}
	storedEntity struct {
		Record []byte      `cbor:"1,keyasint"` // as in entity/eval/record.go
		Refs   []storedRef `cbor:"2,keyasint,omitempty"`
	}
	// storedRef is for servers that do not know the kind of the entity.
	storedRef struct {
		_        struct{} `cbor:",toarray"`
		Attr     string
		Kind, ID string
		OnDelete string
	}
	// storedLog is what one transaction did.
	storedLog struct {
		At      int64          `cbor:"1,keyasint"` // microseconds since 1970
		Tag     int64          `cbor:"2,keyasint"` // of the attempt that committed it
		Request string         `cbor:"3,keyasint,omitempty"`
		Hash    []byte         `cbor:"4,keyasint,omitempty"`
		Changes []storedChange `cbor:"5,keyasint"`
	}
	// storedChange is an eval.LogRow.
	storedChange struct {
		Type         int16       `cbor:"1,keyasint"`
		Kind         string      `cbor:"2,keyasint"`
		ID           string      `cbor:"3,keyasint"`
		PrevRevision int64       `cbor:"4,keyasint,omitempty"`
		Record       []byte      `cbor:"5,keyasint"`
		Prev         []byte      `cbor:"6,keyasint,omitempty"`
		Departed     []byte      `cbor:"7,keyasint,omitempty"`
		Refs         []storedRef `cbor:"8,keyasint,omitempty"`
	}
	storedLease struct {
		TTL   int64 `cbor:"1,keyasint"` // nanoseconds
		Etcd  int64 `cbor:"2,keyasint"` // lease of etcd that holds the key "alive"
		Ended bool  `cbor:"3,keyasint"` // it has entities left, and is not renewed any more
	}
)

func encode(v any) (string, error) {
	b, err := eval.EncMode.Marshal(v)
	if err != nil {
		return "", errs.New(errs.Internal, "encode %T: %w", v, err)
	}
	return string(b), nil
}

func decode(kv *mvccpb.KeyValue, v any) error {
	if err := eval.DecMode.Unmarshal(kv.Value, v); err != nil {
		return errs.New(errs.Corrupt, "key %s: %w", kv.Key, err)
	}
	return nil
}

// revisionOf returns the revision of a key of the log.
func (k keys) revisionOf(key []byte) (schema.Revision, error) {
	var rev int64
	if _, err := fmt.Sscanf(string(key[len(k.prefix):]), "log/%016x", &rev); err != nil {
		return 0, errs.New(errs.Corrupt, "key %s is not of the log", key)
	}
	return schema.Revision(rev), nil
}

func refsOf(o *eval.Object) []storedRef {
	var out []storedRef
	for _, r := range o.Ext.Refs {
		out = append(out, storedRef{Attr: r.Attr, Kind: r.Kind, ID: string(r.ID), OnDelete: string(r.OnDelete)})
	}
	return out
}

// object decodes an entity, with its indexed and enforced values.
func (r *replica) object(raw []byte, refs []storedRef) (*eval.Object, error) {
	o, err := eval.DecodeObject(raw)
	if err != nil {
		return nil, err
	}
	if kind := r.eval.Kinds[o.Rec.Kind]; kind != nil {
		r.eval.ExtractOld(kind, o)
		return o, nil
	}
	o.Ext = &schema.Extracted{}
	for _, x := range refs {
		o.Ext.Refs = append(o.Ext.Refs, schema.RefEntry{Attr: x.Attr, Kind: x.Kind, ID: schema.ID(x.ID), OnDelete: schema.OnDelete(x.OnDelete)})
	}
	return o, nil
}
