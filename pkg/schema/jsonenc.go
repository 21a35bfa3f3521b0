package schema

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strconv"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// EncodeJSON renders the struct that x points to by its json tags: times as
// RFC 3339 with nanoseconds (a zero time is left out), durations as Go
// duration strings, bytes as base64, secrets as "[secret]", keys of maps in
// order. It does not use MarshalJSON of x or of structs in it, so generated
// types call it from there.
func EncodeJSON(x any) ([]byte, error) {
	var buf bytes.Buffer
	if err := encodeJSON(&buf, reflect.ValueOf(x)); err != nil {
		return nil, errs.New(errs.InvalidArgument, "encode %T as JSON: %w", x, err)
	}
	return buf.Bytes(), nil
}

// EncodeObjectJSON renders an entity: {"kind", the fields of Meta, "spec",
// "status"}.
func EncodeObjectJSON(o Object) ([]byte, error) {
	var buf bytes.Buffer
	buf.WriteString(`{"kind":` + strconv.Quote(o.EntityKind().Name))
	meta, err := EncodeJSON(o.GetMeta())
	if err != nil {
		return nil, err
	}
	if body := meta[1 : len(meta)-1]; len(body) > 0 {
		buf.WriteByte(',')
		buf.Write(body)
	}
	for _, part := range []struct {
		name string
		v    any
	}{{"spec", o.SpecPtr()}, {"status", o.StatusPtr()}} {
		b, err := EncodeJSON(part.v)
		if err != nil {
			return nil, err
		}
		buf.WriteString(`,"` + part.name + `":`)
		buf.Write(b)
	}
	buf.WriteByte('}')
	return buf.Bytes(), nil
}

func encodeJSON(buf *bytes.Buffer, v reflect.Value) error {
	switch v.Type() {
	case timeType:
		buf.WriteString(strconv.Quote(v.Interface().(time.Time).UTC().Format(time.RFC3339Nano)))
		return nil
	case durationType:
		buf.WriteString(strconv.Quote(time.Duration(v.Int()).String()))
		return nil
	case secretType:
		buf.WriteString(`"` + redacted + `"`)
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			buf.WriteString("null")
			return nil
		}
		return encodeJSON(buf, v.Elem())
	case reflect.Struct:
		return encodeStruct(buf, v)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			buf.WriteString(`"` + base64.StdEncoding.EncodeToString(v.Bytes()) + `"`)
			return nil
		}
		buf.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				buf.WriteByte(',')
			}
			if err := encodeJSON(buf, v.Index(i)); err != nil {
				return err
			}
		}
		buf.WriteByte(']')
		return nil
	case reflect.Map:
		return encodeMap(buf, v)
	}
	b, err := json.Marshal(v.Interface())
	buf.Write(b)
	return err
}

func encodeStruct(buf *bytes.Buffer, v reflect.Value) error {
	buf.WriteByte('{')
	first := true
	for _, f := range jsonFields(v.Type()) {
		fv := v.FieldByIndex(f.index)
		if f.omit && isEmpty(fv) || fv.Type() == timeType && fv.IsZero() {
			continue
		}
		if !first {
			buf.WriteByte(',')
		}
		first = false
		buf.WriteString(strconv.Quote(f.name) + ":")
		if err := encodeJSON(buf, fv); err != nil {
			return err
		}
	}
	buf.WriteByte('}')
	return nil
}

// isEmpty is what omitempty means, for JSON and CBOR alike.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func encodeMap(buf *bytes.Buffer, v reflect.Value) error {
	byKey := make(map[string]reflect.Value, v.Len())
	for it := v.MapRange(); it.Next(); {
		byKey[it.Key().String()] = it.Value()
	}
	buf.WriteByte('{')
	for i, k := range Keys(byKey) {
		if i > 0 {
			buf.WriteByte(',')
		}
		kb, err := json.Marshal(k)
		if err != nil {
			return err
		}
		buf.Write(kb)
		buf.WriteByte(':')
		if err := encodeJSON(buf, byKey[k]); err != nil {
			return err
		}
	}
	buf.WriteByte('}')
	return nil
}
