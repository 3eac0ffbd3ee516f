// Package canon knows how to read quickly the JSON that encoding/json writes of a Go type without white space: keys in the
// order of the fields, nothing that omitempty would have left out, numbers in their shortest form.
//
// It says no to everything else, and to some that is canonical but rare. Who gets a no asks encoding/json, which is a
// tenth as fast, what is wrong.
package canon

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Read reads data into v, a pointer to a zero value, and reports whether data is canonical: encoding v again then gives
// data. If not, v is unspecified. Types may be built from structs with named fields or embedded structs, slices, arrays, maps by
// string, pointers, strings, booleans, signed integers, floats and types with UnmarshalText, which must accept what their MarshalText
// writes and nothing else; none may contain itself.
func Read(data []byte, v any) bool {
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		panic("BUG: read into something that is no pointer")
	}
	r := reader{text: string(data)}
	return typeReader(to.Type().Elem())(&r, to.Elem()) && r.at == len(r.text)
}

// reader is a document and the place in it. Strings share its memory.
type reader struct {
	text string
	at   int
}

// take consumes what must come next.
func (r *reader) take(s string) bool {
	if !strings.HasPrefix(r.text[r.at:], s) {
		return false
	}
	r.at += len(s)
	return true
}

// str consumes a string that is written as it is.
func (r *reader) str() (string, bool) {
	if !r.take(`"`) {
		return "", false
	}
	for i := r.at; i < len(r.text); i++ {
		switch c := r.text[i]; {
		case c == '"':
			s := r.text[r.at:i]
			r.at = i + 1
			return s, true
		case c < ' ' || c > '~' || c == '\\' || c == '<' || c == '>' || c == '&': // escaped, sometimes
			return "", false
		}
	}
	return "", false
}

// number consumes the characters of a number.
func (r *reader) number() string {
	from := r.at
	for r.at < len(r.text) && (r.text[r.at] >= '0' && r.text[r.at] <= '9' || strings.IndexByte("+-.eE", r.text[r.at]) >= 0) {
		r.at++
	}
	return r.text[from:r.at]
}

type readFunc func(*reader, reflect.Value) bool

var readers sync.Map // by reflect.Type

func typeReader(t reflect.Type) readFunc {
	if f, ok := readers.Load(t); ok {
		return f.(readFunc)
	}
	f := build(t)
	readers.Store(t, f)
	return f
}

var (
	textType = reflect.TypeFor[encoding.TextUnmarshaler]()
	jsonType = reflect.TypeFor[json.Unmarshaler]()
)

func never(*reader, reflect.Value) bool { return false }

func build(t reflect.Type) readFunc {
	switch p := reflect.PointerTo(t); {
	case p.Implements(jsonType), t == reflect.TypeFor[json.Number]():
		return never
	case p.Implements(textType):
		return func(r *reader, v reflect.Value) bool {
			s, ok := r.str()
			return ok && v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)) == nil
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		return structReader(t)
	case reflect.Map:
		return mapReader(t)
	case reflect.Slice:
		return sliceReader(t)
	case reflect.Array:
		return arrayReader(t)
	case reflect.Pointer:
		of := typeReader(t.Elem())
		return func(r *reader, v reflect.Value) bool {
			v.Set(reflect.New(t.Elem()))
			return of(r, v.Elem())
		}
	case reflect.String:
		return func(r *reader, v reflect.Value) bool {
			s, ok := r.str()
			v.SetString(s)
			return ok
		}
	case reflect.Bool:
		return func(r *reader, v reflect.Value) bool {
			v.SetBool(r.take("true"))
			return v.Bool() || r.take("false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return readInt
	case reflect.Float32, reflect.Float64:
		return readFloat
	}
	return never
}

func readInt(r *reader, v reflect.Value) bool {
	s := r.number()
	n, err := strconv.ParseInt(s, 10, 64)
	digits := strings.TrimPrefix(s, "-")
	if err != nil || digits[0] == '+' || digits[0] == '0' && s != "0" || v.OverflowInt(n) {
		return false
	}
	v.SetInt(n)
	return true
}

func readFloat(r *reader, v reflect.Value) bool {
	s := r.number()
	f, err := strconv.ParseFloat(s, v.Type().Bits())
	if err != nil {
		return false
	}
	v.SetFloat(f)
	again, err := json.Marshal(v.Interface())
	return err == nil && string(again) == s
}

type fieldReader struct {
	key   string // "name":
	index []int  // of the field, through the structs that embed it
	omit  bool   // when empty
	read  readFunc
}

// fieldsOf lists the fields of a struct in the order in which they are written, those of embedded structs in their place.
// It is false for structs that encoding/json treats in other ways.
func fieldsOf(t reflect.Type) (fields []fieldReader, ok bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && f.IsExported() && name == "" && f.Type.Kind() == reflect.Struct {
			inner, ok := fieldsOf(f.Type)
			if !ok {
				return nil, false
			}
			for _, x := range inner {
				x.index = append([]int{i}, x.index...)
				fields = append(fields, x)
			}
			continue
		}
		if !f.IsExported() || f.Anonymous || name == "" || name == "-" || rest != "" && rest != "omitempty" {
			return nil, false
		}
		fields = append(fields, fieldReader{`"` + name + `":`, []int{i}, rest != "", typeReader(f.Type)})
	}
	seen := map[string]bool{}
	for _, f := range fields {
		if seen[f.key] { // an outer field hides an inner one
			return nil, false
		}
		seen[f.key] = true
	}
	return fields, true
}

func structReader(t reflect.Type) readFunc {
	fields, ok := fieldsOf(t)
	if !ok {
		return never
	}
	return func(r *reader, v reflect.Value) bool {
		if !r.take("{") {
			return false
		}
		first := true
		for i := range fields {
			f := &fields[i]
			from := r.at
			if !first && !r.take(",") || !r.take(f.key) {
				if !f.omit {
					return false
				}
				r.at = from
				continue
			}
			first = false
			to := v.FieldByIndex(f.index)
			if !f.read(r, to) || f.omit && empty(to) {
				return false
			}
		}
		return r.take("}")
	}
}

// empty is what omitempty leaves out.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// mapReader reads maps whose keys are strings, which are written in ascending order.
func mapReader(t reflect.Type) readFunc {
	if t.Key().Kind() != reflect.String || t.Key().Implements(reflect.TypeFor[encoding.TextMarshaler]()) ||
		reflect.PointerTo(t.Key()).Implements(textType) {
		return never
	}
	of := typeReader(t.Elem())
	return func(r *reader, v reflect.Value) bool {
		if !r.take("{") {
			return false
		}
		v.Set(reflect.MakeMap(t))
		for last := ""; !r.take("}"); {
			if v.Len() > 0 && !r.take(",") {
				return false
			}
			key, ok := r.str()
			if !ok || v.Len() > 0 && key <= last || !r.take(":") {
				return false
			}
			last = key
			elem := reflect.New(t.Elem()).Elem()
			if !of(r, elem) {
				return false
			}
			v.SetMapIndex(reflect.ValueOf(key).Convert(t.Key()), elem)
		}
		return true
	}
}

func sliceReader(t reflect.Type) readFunc {
	of := typeReader(t.Elem())
	if t.Elem().Kind() == reflect.Uint8 {
		return never // written as base64
	}
	return func(r *reader, v reflect.Value) bool {
		if !r.take("[") {
			return false
		}
		v.Set(reflect.MakeSlice(t, 0, 0))
		for n := 0; !r.take("]"); n++ {
			if n > 0 && !r.take(",") {
				return false
			}
			if n == v.Cap() {
				v.Grow(1)
			}
			v.SetLen(n + 1)
			if !of(r, v.Index(n)) {
				return false
			}
		}
		return true
	}
}

func arrayReader(t reflect.Type) readFunc {
	of := typeReader(t.Elem())
	return func(r *reader, v reflect.Value) bool {
		if !r.take("[") {
			return false
		}
		for n := range v.Len() {
			if n > 0 && !r.take(",") || !of(r, v.Index(n)) {
				return false
			}
		}
		return r.take("]")
	}
}
