package schema

import "reflect"

// KeepSecrets replaces every secret of o that was given as "[secret]" in JSON
// by the secret of old at the same place (field, key of a map, position in a
// list), so that an entity can be read, edited and written back. A secret that
// old lacks stays unsealed and fails validation. Both must be of one kind.
func KeepSecrets(o, old Object) {
	keepSecrets(reflect.ValueOf(o.SpecPtr()), reflect.ValueOf(old.SpecPtr()))
	keepSecrets(reflect.ValueOf(o.StatusPtr()), reflect.ValueOf(old.StatusPtr()))
}

func keepSecrets(dst, old reflect.Value) {
	if dst.Type() != old.Type() {
		return
	}
	if dst.Type() == secretType {
		if dst.CanSet() && dst.Interface().(Secret).keep && old.Interface().(Secret).Sealed() {
			dst.Set(old)
		}
		return
	}
	switch dst.Kind() {
	case reflect.Pointer:
		if !dst.IsNil() && !old.IsNil() {
			keepSecrets(dst.Elem(), old.Elem())
		}
	case reflect.Struct:
		if dst.Type() == timeType {
			return
		}
		for i := range dst.NumField() {
			if dst.Type().Field(i).IsExported() {
				keepSecrets(dst.Field(i), old.Field(i))
			}
		}
	case reflect.Slice:
		for i := range min(dst.Len(), old.Len()) {
			keepSecrets(dst.Index(i), old.Index(i))
		}
	case reflect.Map:
		for _, k := range dst.MapKeys() {
			ov := old.MapIndex(k)
			if !ov.IsValid() {
				continue
			}
			e := reflect.New(dst.Type().Elem()).Elem() // elements of maps cannot be set in place
			e.Set(dst.MapIndex(k))
			keepSecrets(e, ov)
			dst.SetMapIndex(k, e)
		}
	}
}
