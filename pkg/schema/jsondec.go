package schema

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

// JSONOptions changes how JSON is decoded.
type JSONOptions struct {
	// Seal seals a secret that is given as plain text at path. Without it plain
	// secrets are refused.
	Seal func(path, plain string) (Secret, error)
}

// DecodeJSON decodes b strictly into the struct that x points to: unknown and
// repeated keys are errors with a suggestion, required ones must be there,
// missing ones get their defaults. Errors have class invalid_argument and name
// the path. It does not check other rules (see Validate).
func DecodeJSON(b []byte, x any) error { return DecodeJSONWith(b, x, JSONOptions{}) }

// DecodeJSONWith is DecodeJSON with options.
func DecodeJSONWith(b []byte, x any, opts JSONOptions) error {
	tree, err := parseJSON(b)
	if err != nil {
		return err
	}
	d := jsonDecoder{opts: opts}
	return d.structAt(reflect.ValueOf(x).Elem(), tree, "")
}

// DecodeObjectJSON decodes an entity as EncodeObjectJSON renders it into o.
// The key "kind", if present, must be o's kind.
func DecodeObjectJSON(b []byte, o Object) error {
	return DecodeObjectJSONWith(b, o, JSONOptions{})
}

// DecodeObjectJSONWith is DecodeObjectJSON with options.
func DecodeObjectJSONWith(b []byte, o Object, opts JSONOptions) error {
	tree, err := parseJSON(b)
	if err != nil {
		return err
	}
	obj, ok := tree.(map[string]any)
	if !ok {
		return badJSON("", "an object is expected")
	}
	k := o.EntityKind()
	if kind, there := obj["kind"]; there && kind != k.Name {
		return badJSON("kind", "%v is not %s", kind, k.Name)
	}
	delete(obj, "kind")
	parts := map[string]any{}
	for _, name := range []string{"spec", "status"} {
		if v, there := obj[name]; there && v != nil {
			parts[name] = v
		} else {
			parts[name] = map[string]any{}
		}
		delete(obj, name)
	}
	d := jsonDecoder{opts: opts, extra: []string{"kind", "spec", "status"}}
	if err := d.structAt(reflect.ValueOf(o.GetMeta()).Elem(), obj, ""); err != nil {
		return err
	}
	d.extra = nil
	if err := d.structAt(reflect.ValueOf(o.SpecPtr()).Elem(), parts["spec"], "spec"); err != nil {
		return err
	}
	return d.structAt(reflect.ValueOf(o.StatusPtr()).Elem(), parts["status"], "status")
}

func badJSON(path, format string, args ...any) error {
	msg := fmt.Sprintf(format, args...)
	if path != "" {
		msg = path + ": " + msg
	}
	return errs.New(errs.InvalidArgument, "%s", msg).With("attr", path)
}

// parseJSON reads one JSON value as map[string]any, []any, string,
// json.Number, bool or nil.
func parseJSON(b []byte) (any, error) {
	if len(b) > MaxEncoded {
		return nil, badJSON("", "%d bytes of JSON are more than %d", len(b), MaxEncoded)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	v, err := jsonValue(dec, "", 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, badJSON("", "more after the end of the JSON value")
	}
	return v, nil
}

func jsonValue(dec *json.Decoder, path string, depth int) (any, error) {
	if depth > maxNesting {
		return nil, badJSON(path, "nested deeper than %d", maxNesting)
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, badJSON(path, "not JSON: %v", err)
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return tok, nil
	}
	if delim == '[' {
		list := []any{}
		for dec.More() {
			v, err := jsonValue(dec, ElemName(path, len(list)), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = dec.Token()
		return list, jsonEnd(path, err)
	}
	obj := map[string]any{}
	for dec.More() {
		kt, err := dec.Token()
		if err != nil {
			return nil, badJSON(path, "not JSON: %v", err)
		}
		key, _ := kt.(string)
		if _, twice := obj[key]; twice {
			return nil, badJSON(path, "key %q is repeated", clip(key))
		}
		if obj[key], err = jsonValue(dec, join(path, key), depth+1); err != nil {
			return nil, err
		}
	}
	_, err = dec.Token()
	return obj, jsonEnd(path, err)
}

func jsonEnd(path string, err error) error {
	if err != nil {
		return badJSON(path, "not JSON: %v", err)
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

type jsonDecoder struct {
	opts  JSONOptions
	extra []string // other valid keys of the top level, for suggestions
}

func (d *jsonDecoder) structAt(dst reflect.Value, tree any, path string) error {
	obj, ok := tree.(map[string]any)
	if !ok {
		return badJSON(path, "an object is expected")
	}
	dst.SetZero()
	if x, ok := dst.Addr().Interface().(defaulter); ok {
		x.SetDefaults()
	}
	fields := jsonFields(dst.Type())
	known := append([]string{}, d.extra...)
	for _, f := range fields {
		known = append(known, f.name)
	}
	used := 0
	for _, f := range fields {
		v, there := obj[f.name]
		if there {
			used++
		}
		if !there || v == nil { // null is absent
			if f.required {
				return badJSON(join(path, f.name), "is required")
			}
			continue
		}
		if err := d.value(dst.FieldByIndex(f.index), v, join(path, f.name)); err != nil {
			return err
		}
	}
	if used == len(obj) {
		return nil
	}
	names := map[string]bool{}
	for _, f := range fields {
		names[f.name] = true
	}
	for _, k := range Keys(obj) {
		if !names[k] {
			hint := ""
			if s := suggest.Nearest(k, known); s != "" {
				hint = fmt.Sprintf("; did you mean %q?", s)
			}
			return badJSON(join(path, clip(k)), "unknown field%s", hint)
		}
	}
	return nil
}

func (d *jsonDecoder) value(dst reflect.Value, v any, path string) error {
	switch dst.Type() {
	case timeType:
		s, _ := v.(string)
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return badJSON(path, "a time such as \"2006-01-02T15:04:05Z\" is expected")
		}
		dst.Set(reflect.ValueOf(t.UTC()))
		return nil
	case durationType:
		s, _ := v.(string)
		dur, err := time.ParseDuration(s)
		if err != nil {
			return badJSON(path, "a duration such as \"250ms\" or \"1h30m\" is expected")
		}
		dst.SetInt(int64(dur))
		return nil
	case secretType:
		return d.secret(dst, v, path)
	}
	switch dst.Kind() {
	case reflect.Pointer:
		p := reflect.New(dst.Type().Elem())
		if err := d.value(p.Elem(), v, path); err != nil {
			return err
		}
		dst.Set(p)
		return nil
	case reflect.Struct:
		return d.structAt(dst, v, path)
	case reflect.Slice:
		return d.list(dst, v, path)
	case reflect.Map:
		return d.mapping(dst, v, path)
	}
	return scalar(dst, v, path)
}

func (d *jsonDecoder) secret(dst reflect.Value, v any, path string) error {
	s, ok := v.(string)
	switch {
	case !ok:
		return badJSON(path, "a string is expected")
	case s == redacted:
		dst.Set(reflect.ValueOf(Secret{keep: true}))
		return nil
	case d.opts.Seal == nil:
		return badJSON(path, "a secret cannot be given here in plain text")
	}
	sec, err := d.opts.Seal(path, s)
	if err != nil {
		return errs.Wrap(err, "%s", path)
	}
	dst.Set(reflect.ValueOf(sec))
	return nil
}

func (d *jsonDecoder) list(dst reflect.Value, v any, path string) error {
	if dst.Type().Elem().Kind() == reflect.Uint8 {
		s, ok := v.(string)
		b, err := base64.StdEncoding.DecodeString(s)
		if !ok || err != nil {
			return badJSON(path, "base64 is expected")
		}
		dst.SetBytes(b)
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		return badJSON(path, "a list is expected")
	}
	if len(list) > maxElements {
		return badJSON(path, "more than %d elements", maxElements)
	}
	out := reflect.MakeSlice(dst.Type(), len(list), len(list))
	for i, e := range list {
		if err := d.value(out.Index(i), e, ElemName(path, i)); err != nil {
			return err
		}
	}
	dst.Set(out)
	return nil
}

func (d *jsonDecoder) mapping(dst reflect.Value, v any, path string) error {
	obj, ok := v.(map[string]any)
	if !ok {
		return badJSON(path, "an object is expected")
	}
	out := reflect.MakeMapWithSize(dst.Type(), len(obj))
	for _, k := range Keys(obj) {
		e := reflect.New(dst.Type().Elem()).Elem()
		if err := d.value(e, obj[k], KeyName(path, k)); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(k).Convert(dst.Type().Key()), e)
	}
	dst.Set(out)
	return nil
}

func scalar(dst reflect.Value, v any, path string) error {
	switch dst.Kind() {
	case reflect.String:
		if s, ok := v.(string); ok {
			dst.SetString(s)
			return nil
		}
		return badJSON(path, "a string is expected")
	case reflect.Bool:
		if b, ok := v.(bool); ok {
			dst.SetBool(b)
			return nil
		}
		return badJSON(path, "true or false is expected")
	case reflect.Int64, reflect.Int, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, ok := v.(json.Number)
		if !ok || strings.ContainsAny(n.String(), ".eE") {
			return badJSON(path, "an integer is expected")
		}
		if dst.CanUint() {
			u, err := strconv.ParseUint(n.String(), 10, dst.Type().Bits())
			if err != nil {
				return badJSON(path, "%s is out of range", clip(n.String()))
			}
			dst.SetUint(u)
			return nil
		}
		i, err := strconv.ParseInt(n.String(), 10, dst.Type().Bits())
		if err != nil {
			return badJSON(path, "%s is out of range", clip(n.String()))
		}
		dst.SetInt(i)
		return nil
	case reflect.Float64:
		n, ok := v.(json.Number)
		if !ok {
			return badJSON(path, "a number is expected")
		}
		x, err := n.Float64()
		if err != nil {
			return badJSON(path, "%s is out of range", clip(n.String()))
		}
		dst.SetFloat(x)
		return nil
	}
	return badJSON(path, "fields of type %s cannot be decoded", dst.Type())
}
