package schema

import (
	"reflect"
	"time"
)

// Copy returns a deep copy of a generated value: no slice, map or pointer is
// shared with v.
func Copy[T any](v T) T {
	out := reflect.New(reflect.TypeFor[T]()).Elem()
	deepCopy(out, reflect.ValueOf(&v).Elem())
	return out.Interface().(T)
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	secretType   = reflect.TypeFor[Secret]() // immutable
)

func deepCopy(dst, src reflect.Value) {
	dst.Set(src)
	switch src.Kind() {
	case reflect.Pointer:
		if !src.IsNil() {
			dst.Set(reflect.New(src.Type().Elem()))
			deepCopy(dst.Elem(), src.Elem())
		}
	case reflect.Interface:
		if !src.IsNil() {
			e := reflect.New(src.Elem().Type()).Elem()
			deepCopy(e, src.Elem())
			dst.Set(e)
		}
	case reflect.Slice:
		if !src.IsNil() {
			dst.Set(reflect.MakeSlice(src.Type(), src.Len(), src.Len()))
			for i := range src.Len() {
				deepCopy(dst.Index(i), src.Index(i))
			}
		}
	case reflect.Map:
		if !src.IsNil() {
			dst.Set(reflect.MakeMapWithSize(src.Type(), src.Len()))
			for it := src.MapRange(); it.Next(); {
				e := reflect.New(src.Type().Elem()).Elem()
				deepCopy(e, it.Value())
				dst.SetMapIndex(it.Key(), e)
			}
		}
	case reflect.Struct:
		if src.Type() == timeType || src.Type() == secretType {
			return
		}
		for i := range src.NumField() {
			if dst.Field(i).CanSet() {
				deepCopy(dst.Field(i), src.Field(i))
			}
		}
	}
}
