// Package canon knows how to read quickly the JSON that encoding/json writes of a Go type without white space: keys in
// the order of the fields, nothing that omitempty would have left out, numbers in their shortest form.
//
// It says no to everything else, and to some that is canonical but rare. A caller that gets a no asks encoding/json,
// which is a tenth as fast, what is wrong.
//
// For each type a function is built once that reads values of it: what can be known of the type (fields, keys, whether
// it reads itself) is not asked again for each value.
package canon

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Read reads data into a pointer to a zero value, and reports whether data is canonical: encoding the value again then
// gives data. If not, the value is unspecified. Types may be built from structs with named fields or embedded structs,
// slices, arrays, maps by string, pointers, strings, booleans, signed integers, floats and types with UnmarshalText,
// which must accept what their MarshalText writes and nothing else; none may contain itself.
func Read(data []byte, into any) bool {
	to := reflect.ValueOf(into)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		panic("BUG: read into something that is no pointer")
	}
	in := reader{text: string(data)}
	return typeReader(to.Type().Elem())(&in, to.Elem()) && in.at == len(in.text)
}

// reader is a document and the place in it. Strings share its memory.
type reader struct {
	text string
	at   int
}

// take consumes what must come next.
func (r *reader) take(text string) bool {
	if !strings.HasPrefix(r.text[r.at:], text) {
		return false
	}
	r.at += len(text)
	return true
}

// str consumes a string that is written as it is.
func (r *reader) str() (string, bool) {
	if !r.take(`"`) {
		return "", false
	}
	for i := r.at; i < len(r.text); i++ {
		switch char := r.text[i]; {
		case char == '"':
			text := r.text[r.at:i]
			r.at = i + 1
			return text, true
		// Escaped, sometimes.
		case char < ' ' || char > '~' || char == '\\' || char == '<' || char == '>' || char == '&':
			return "", false
		}
	}
	return "", false
}

// number consumes the characters of a number.
func (r *reader) number() string {
	from := r.at
	for r.at < len(r.text) && strings.IndexByte("0123456789+-.eE", r.text[r.at]) >= 0 {
		r.at++
	}
	return r.text[from:r.at]
}

// readFunc reads a value of one type, false if what comes next is not its canonical form.
type readFunc func(*reader, reflect.Value) bool

var readers sync.Map // by reflect.Type

// typeReader returns the readFunc of a type, which is built once in a process.
func typeReader(typ reflect.Type) readFunc {
	if found, ok := readers.Load(typ); ok {
		return found.(readFunc)
	}
	found := build(typ)
	readers.Store(typ, found)
	return found
}

var (
	textType = reflect.TypeFor[encoding.TextUnmarshaler]()
	jsonType = reflect.TypeFor[json.Unmarshaler]()
)

// never reads types whose JSON is not settled by the type alone.
func never(*reader, reflect.Value) bool { return false }

// build makes the readFunc of a type. What reads itself from text goes before what its kind would say.
func build(typ reflect.Type) readFunc {
	// A type with a method of its own says itself how it is read, so methods come before kinds. What a method for JSON
	// takes cannot be shown to be canonical, so such a type is never read.
	switch pointer := reflect.PointerTo(typ); {
	case pointer.Implements(jsonType), typ == reflect.TypeFor[json.Number]():
		return never
	case pointer.Implements(textType):
		return func(in *reader, value reflect.Value) bool {
			text, ok := in.str()
			return ok && value.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)) == nil
		}
	}
	switch typ.Kind() {
	case reflect.Struct:
		return structReader(typ)
	case reflect.Map:
		return mapReader(typ)
	case reflect.Slice:
		return sliceReader(typ)
	case reflect.Array:
		return arrayReader(typ)
	case reflect.Pointer:
		of := typeReader(typ.Elem())
		return func(in *reader, value reflect.Value) bool {
			value.Set(reflect.New(typ.Elem()))
			return of(in, value.Elem())
		}
	case reflect.String:
		return func(in *reader, value reflect.Value) bool {
			text, ok := in.str()
			value.SetString(text)
			return ok
		}
	case reflect.Bool:
		return func(in *reader, value reflect.Value) bool {
			value.SetBool(in.take("true"))
			return value.Bool() || in.take("false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return readInt
	case reflect.Float32, reflect.Float64:
		return readFloat
	}
	return never
}

// readInt reads a whole number without a leading + or 0.
func readInt(in *reader, value reflect.Value) bool {
	text := in.number()
	number, err := strconv.ParseInt(text, 10, 64)
	digits := strings.TrimPrefix(text, "-")
	if err != nil || digits[0] == '+' || digits[0] == '0' && text != "0" || value.OverflowInt(number) {
		return false
	}
	value.SetInt(number)
	return true
}

// readFloat writes the number again: only its shortest form, in the notation that encoding/json chooses, is canonical.
func readFloat(in *reader, value reflect.Value) bool {
	text := in.number()
	number, err := strconv.ParseFloat(text, value.Type().Bits())
	if err != nil {
		return false
	}
	value.SetFloat(number)
	again, err := json.Marshal(value.Interface())
	return err == nil && string(again) == text
}

// fieldReader reads a field of a struct.
type fieldReader struct {
	key   string // "name":
	index []int  // of the field, through the structs that embed it
	omit  bool   // when empty
	read  readFunc
}

// fieldsOf lists the fields of a struct in the order in which they are written, those of embedded structs in their
// place. It is false for structs that encoding/json treats in other ways.
func fieldsOf(typ reflect.Type) (fields []fieldReader, ok bool) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, rest, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && field.IsExported() && name == "" && field.Type.Kind() == reflect.Struct {
			inner, ok := fieldsOf(field.Type)
			if !ok {
				return nil, false
			}
			for _, sub := range inner {
				sub.index = append([]int{i}, sub.index...)
				fields = append(fields, sub)
			}
			continue
		}
		if !field.IsExported() || field.Anonymous || name == "" || name == "-" || rest != "" && rest != "omitempty" {
			return nil, false
		}
		fields = append(fields, fieldReader{`"` + name + `":`, []int{i}, rest != "", typeReader(field.Type)})
	}
	seen := map[string]bool{}
	for _, field := range fields {
		if seen[field.key] { // an outer field hides an inner one
			return nil, false
		}
		seen[field.key] = true
	}
	return fields, true
}

// structReader goes through the fields in order. A field whose key does not come next must be one that may be left out,
// and one that came must not be empty then.
func structReader(typ reflect.Type) readFunc {
	fields, ok := fieldsOf(typ)
	if !ok {
		return never
	}
	return func(in *reader, value reflect.Value) bool {
		if !in.take("{") {
			return false
		}
		first := true
		for i := range fields {
			field := &fields[i]
			from := in.at
			if !first && !in.take(",") || !in.take(field.key) {
				if !field.omit {
					return false
				}
				in.at = from
				continue
			}
			first = false
			to := value.FieldByIndex(field.index)
			if !field.read(in, to) || field.omit && empty(to) {
				return false
			}
		}
		return in.take("}")
	}
}

// empty reports whether omitempty leaves a value out.
func empty(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map, reflect.String:
		return value.Len() == 0
	case reflect.Struct:
		return false
	}
	return value.IsZero()
}

// mapReader reads maps whose keys are strings, which are written in ascending order.
func mapReader(typ reflect.Type) readFunc {
	if typ.Key().Kind() != reflect.String || typ.Key().Implements(reflect.TypeFor[encoding.TextMarshaler]()) ||
		reflect.PointerTo(typ.Key()).Implements(textType) {
		return never
	}
	of := typeReader(typ.Elem())
	return func(in *reader, value reflect.Value) bool {
		if !in.take("{") {
			return false
		}
		value.Set(reflect.MakeMap(typ))
		for last := ""; !in.take("}"); {
			if value.Len() > 0 && !in.take(",") {
				return false
			}
			key, ok := in.str()
			if !ok || value.Len() > 0 && key <= last || !in.take(":") {
				return false
			}
			last = key
			elem := reflect.New(typ.Elem()).Elem()
			if !of(in, elem) {
				return false
			}
			value.SetMapIndex(reflect.ValueOf(key).Convert(typ.Key()), elem)
		}
		return true
	}
}

// sliceReader reads slices of any length. An empty one is not nil, which would be written as null.
func sliceReader(typ reflect.Type) readFunc {
	of := typeReader(typ.Elem())
	if typ.Elem().Kind() == reflect.Uint8 {
		return never // written as base64
	}
	return func(in *reader, value reflect.Value) bool {
		if !in.take("[") {
			return false
		}
		value.Set(reflect.MakeSlice(typ, 0, 0))
		for count := 0; !in.take("]"); count++ {
			if count > 0 && !in.take(",") {
				return false
			}
			if count == value.Cap() {
				value.Grow(1)
			}
			value.SetLen(count + 1)
			if !of(in, value.Index(count)) {
				return false
			}
		}
		return true
	}
}

// arrayReader reads arrays, whose length the type says.
func arrayReader(typ reflect.Type) readFunc {
	of := typeReader(typ.Elem())
	return func(in *reader, value reflect.Value) bool {
		if !in.take("[") {
			return false
		}
		for count := range value.Len() {
			if count > 0 && !in.take(",") || !of(in, value.Index(count)) {
				return false
			}
		}
		return in.take("]")
	}
}
