// Package decode knows how the files of users are read: YAML or JSON, strictly, with the line of
// every mistake and the word that was probably meant; and how such files are written.
//
// A field is named by its yaml tag (else its json tag, else its name in lower case). A field
// tagged `decode:"required"` must be present. Types read themselves from a scalar through
// encoding.TextUnmarshaler, or from any value through Unmarshaler.
package decode

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// Unmarshaler is a type that reads itself from a node, for values with several spellings.
// Its error should come from Node.Errorf or Node.Decode so that it carries the line.
type Unmarshaler interface {
	UnmarshalNode(n *Node) error
}

// maxErrors is how many mistakes of one document are reported.
const maxErrors = 20

// File reads path and decodes it into v as schema ("hetc.soc/1"); see Into.
func File(path, schema string, v any) error {
	d, err := ReadFile(path)
	if err != nil {
		return err
	}
	return d.Into(schema, v)
}

// Bytes decodes data into v as schema; name is shown in errors. See Into.
func Bytes(name string, data []byte, schema string, v any) error {
	d, err := Parse(name, data)
	if err != nil {
		return err
	}
	return d.Into(schema, v)
}

// Into decodes the document into v, a pointer. With a schema other than "" the document must be a
// mapping that says so under the key "schema"; that key needs no field in v. The error is a
// *diag.Diagnostic or a diag.List of class ClassInput in the order of the document, and v is
// then unspecified.
func (d *Document) Into(schema string, v any) error {
	if schema != "" {
		if err := d.checkSchema(schema); err != nil {
			return err
		}
	}
	dec := &decoder{name: d.name, schemaKey: schema != ""}
	dec.root(d.root, v)
	return dec.errs.Err()
}

// checkSchema compares the document's schema with the wanted one.
func (d *Document) checkSchema(want string) error {
	fail := func(line int, format string, args ...any) *diag.Diagnostic {
		return diag.New(diag.ClassInput, format, args...).WithCode("decode.schema").At("%s:%d", d.name, line)
	}
	if d.root.kind != mapping {
		return fail(d.root.line, "document is a %s, want a mapping with %q", d.root.describe(), "schema: "+want)
	}
	n := d.root.get("schema")
	if n == nil {
		return fail(d.root.line, "key \"schema\" is missing, want %q", want).
			WithHint("add %q as the first line if this is such a file", "schema: "+want)
	}
	if n.kind != scalar || n.tag != "str" {
		return fail(n.line, "schema is a %s, want %q", n.describe(), want)
	}
	if n.text == want {
		return nil
	}
	wantKind, wantVersion, _ := strings.Cut(want, "/")
	kind, version, _ := strings.Cut(n.text, "/")
	if kind != wantKind {
		e := fail(n.line, "schema is %q, want %q", clip(n.text), want)
		if strings.HasPrefix(kind, "hetc.") && diag.Nearest(kind, []string{wantKind}) == "" {
			return e.WithHint("this is a %s file, not a %s file", clip(strings.TrimPrefix(kind, "hetc.")), strings.TrimPrefix(wantKind, "hetc."))
		}
		return e.WithHint("did you mean %q?", want)
	}
	e := fail(n.line, "schema is %q, want %q", clip(n.text), want)
	have, err1 := strconv.Atoi(version)
	can, err2 := strconv.Atoi(wantVersion)
	if err1 == nil && err2 == nil && have > can {
		return e.WithHint("the file is from a newer hetc: update hetc")
	}
	return e.WithHint("this hetc reads version %s: make the file again", wantVersion)
}

// decoder walks nodes and Go values side by side.
type decoder struct {
	name      string
	schemaKey bool // a "schema" key at the root is allowed without a field
	errs      diag.List
}

func (d *decoder) root(n *Node, v any) {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("BUG: decode into %T, want a pointer", v))
	}
	d.value(n, rv.Elem(), n.path, true)
}

func (d *decoder) full() bool { return len(d.errs) >= maxErrors }

func (d *decoder) fail(line int, code, format string, args ...any) *diag.Diagnostic {
	e := diag.New(diag.ClassInput, format, args...).WithCode(code).At("%s:%d", d.name, line)
	if !d.full() {
		d.errs = append(d.errs, e)
	}
	return e
}

// in is " in PATH" for messages, empty at the root.
func in(path string) string {
	if path == "" {
		return ""
	}
	return " in " + path
}

func at(path string) string {
	if path == "" {
		return "document"
	}
	return path
}

var (
	textType = reflect.TypeFor[encoding.TextUnmarshaler]()
	nodeType = reflect.TypeFor[Unmarshaler]()
)

func (d *decoder) value(n *Node, v reflect.Value, path string, top bool) {
	if d.full() {
		return
	}
	if v.CanAddr() && !(v.Kind() == reflect.Pointer) {
		p := v.Addr()
		if p.Type().Implements(nodeType) {
			n.path = path
			if err := p.Interface().(Unmarshaler).UnmarshalNode(n); err != nil {
				d.adopt(n, path, err)
			}
			return
		}
		if p.Type().Implements(textType) {
			if n.kind != scalar || n.tag == "null" {
				d.fail(n.line, "decode.type", "%s is a %s, want a single value", at(path), n.describe())
				return
			}
			if err := p.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.text)); err != nil {
				d.fail(n.line, "decode.value", "%s: %w", at(path), err)
			}
			return
		}
	}
	want := func(what string) *diag.Diagnostic {
		return d.fail(n.line, "decode.type", "%s is a %s, want %s", at(path), n.describe(), what)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if n.null() {
			v.SetZero()
			return
		}
		p := reflect.New(v.Type().Elem())
		d.value(n, p.Elem(), path, top)
		v.Set(p)
	case reflect.Struct:
		if n.kind != mapping {
			want("a mapping")
			return
		}
		d.structure(n, v, path, top)
	case reflect.Map:
		if n.null() {
			v.SetZero()
			return
		}
		if n.kind != mapping {
			want("a mapping")
			return
		}
		out := reflect.MakeMapWithSize(v.Type(), len(n.keys))
		for i, k := range n.keys {
			if top && d.schemaKey && k.text == "schema" {
				continue
			}
			key := reflect.New(v.Type().Key()).Elem()
			d.value(k, key, "key "+strconv.Quote(clip(k.text))+in(path), false)
			elem := reflect.New(v.Type().Elem()).Elem()
			d.value(n.vals[i], elem, join(path, clip(k.text)), false)
			if d.full() {
				return
			}
			out.SetMapIndex(key, elem)
		}
		v.Set(out)
	case reflect.Slice:
		if n.null() {
			v.SetZero()
			return
		}
		if n.kind != sequence {
			want("a list")
			return
		}
		out := reflect.MakeSlice(v.Type(), len(n.vals), len(n.vals))
		for i, c := range n.vals {
			d.value(c, out.Index(i), fmt.Sprintf("%s[%d]", path, i), false)
		}
		v.Set(out)
	case reflect.Array:
		if n.kind != sequence || len(n.vals) != v.Len() {
			want(fmt.Sprintf("a list of %d", v.Len()))
			return
		}
		for i, c := range n.vals {
			d.value(c, v.Index(i), fmt.Sprintf("%s[%d]", path, i), false)
		}
	case reflect.Interface:
		if v.NumMethod() != 0 {
			panic(fmt.Sprintf("BUG: decode into interface %s", v.Type()))
		}
		if x := d.any(n); x != nil {
			v.Set(reflect.ValueOf(x))
		} else {
			v.SetZero()
		}
	case reflect.String:
		if n.kind != scalar || n.tag == "null" || n.tag == "bool" {
			if e := want("text"); n.kind == scalar && n.tag == "bool" {
				e.Hint = "put it in quotes"
			}
			return
		}
		v.SetString(n.text)
	case reflect.Bool:
		b, err := strconv.ParseBool(strings.ToLower(n.text))
		if n.kind != scalar || n.tag != "bool" || err != nil {
			want("true or false")
			return
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		x, err := n.int()
		if err != nil || v.OverflowInt(x) {
			want(fmt.Sprintf("a whole number of at most %d bits", v.Type().Bits()))
			return
		}
		v.SetInt(x)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		x, err := n.uint()
		if err != nil || v.OverflowUint(x) {
			want(fmt.Sprintf("a whole number from 0 of at most %d bits", v.Type().Bits()))
			return
		}
		v.SetUint(x)
	case reflect.Float32, reflect.Float64:
		x, err := n.float()
		if err != nil || v.OverflowFloat(x) {
			want("a finite number")
			return
		}
		v.SetFloat(x)
	default:
		panic(fmt.Sprintf("BUG: decode into %s", v.Type()))
	}
}

// adopt adds the error of an Unmarshaler; diagnostics keep their line.
func (d *decoder) adopt(n *Node, path string, err error) {
	add := func(e *diag.Diagnostic) {
		if d.full() {
			return
		}
		if e.Path == "" {
			e.Path = n.at()
		}
		d.errs = append(d.errs, e)
	}
	switch e := err.(type) {
	case *diag.Diagnostic:
		add(e)
	case diag.List:
		for _, x := range e {
			add(x)
		}
	default:
		d.fail(n.line, "decode.value", "%s: %w", at(path), err)
	}
}

// field is one decodable field of a struct.
type field struct {
	name     string
	index    []int
	required bool
}

// fieldsOf lists the fields of t, inlined ones included (exported fields of an unexported
// embedded struct too).
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		tag, ok := f.Tag.Lookup("yaml")
		if !ok {
			tag = f.Tag.Get("json")
		}
		name, opts, _ := strings.Cut(tag, ",")
		if name == "-" {
			continue
		}
		if strings.Contains(opts, "inline") || (f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct) {
			for _, sub := range fieldsOf(f.Type) {
				sub.index = append([]int{i}, sub.index...)
				out = append(out, sub)
			}
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		out = append(out, field{name: name, index: []int{i}, required: f.Tag.Get("decode") == "required"})
	}
	return out
}

func (d *decoder) structure(n *Node, v reflect.Value, path string, top bool) {
	fields := fieldsOf(v.Type())
	names := make([]string, len(fields))
	byName := make(map[string]field, len(fields))
	for i, f := range fields {
		names[i] = f.name
		byName[f.name] = f
	}
	for i, k := range n.keys {
		f, ok := byName[k.text]
		if !ok {
			if top && d.schemaKey && k.text == "schema" {
				continue
			}
			e := d.fail(k.line, "decode.unknown-key", "unknown key %q%s", clip(k.text), in(path))
			e.Hint = diag.DidYouMean(k.text, names)
			continue
		}
		d.value(n.vals[i], v.FieldByIndex(f.index), join(path, f.name), false)
	}
	for _, f := range fields {
		if f.required && n.get(f.name) == nil {
			d.fail(n.line, "decode.missing-key", "key %q is missing%s", f.name, in(path))
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// any decodes into map[string]any, []any, string, int64, float64, bool or nil.
func (d *decoder) any(n *Node) any {
	switch n.kind {
	case mapping:
		m := make(map[string]any, len(n.keys))
		for i, k := range n.keys {
			m[k.text] = d.any(n.vals[i])
		}
		return m
	case sequence:
		s := make([]any, len(n.vals))
		for i, c := range n.vals {
			s[i] = d.any(c)
		}
		return s
	}
	switch n.tag {
	case "null":
		return nil
	case "bool":
		return strings.EqualFold(n.text, "true")
	case "int":
		if x, err := n.int(); err == nil {
			return x
		}
	case "str":
		return n.text
	}
	x, err := n.float()
	if err != nil {
		d.fail(n.line, "decode.type", "number %s is not finite", clip(n.text))
	}
	return x
}

func (n *Node) null() bool { return n.kind == scalar && n.tag == "null" }

var errNumber = fmt.Errorf("not a number")

// number is the text of a numeric scalar without the separators YAML allows.
func (n *Node) number(tags ...string) (string, error) {
	if n.kind == scalar {
		for _, t := range tags {
			if n.tag == t {
				return strings.ReplaceAll(n.text, "_", ""), nil
			}
		}
	}
	return "", errNumber
}

// octal reports a leading zero, which some readers take as base 8 and some as base 10.
func octal(s string) bool {
	s = strings.TrimLeft(s, "+-")
	return len(s) > 1 && s[0] == '0' && s[1] >= '0' && s[1] <= '9'
}

func (n *Node) int() (int64, error) {
	s, err := n.number("int")
	if err != nil || octal(s) {
		return 0, errNumber
	}
	return strconv.ParseInt(s, 0, 64)
}

func (n *Node) uint() (uint64, error) {
	s, err := n.number("int")
	if err != nil || octal(s) {
		return 0, errNumber
	}
	return strconv.ParseUint(strings.TrimPrefix(s, "+"), 0, 64)
}

func (n *Node) float() (float64, error) {
	s, err := n.number("int", "float")
	if err != nil || octal(s) {
		return 0, errNumber
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		i, err := strconv.ParseInt(s, 0, 64)
		return float64(i), err
	}
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return 0, errNumber
	}
	return x, nil
}

// ---- what an Unmarshaler sees

func (n *Node) at() string { return fmt.Sprintf("%s:%d", *n.file, n.line) }

// Scalar returns the text of a single value, false for a mapping, a list or an empty value.
func (n *Node) Scalar() (string, bool) {
	return n.text, n.kind == scalar && n.tag != "null"
}

// IsMapping reports whether the node is a mapping.
func (n *Node) IsMapping() bool { return n.kind == mapping }

// IsList reports whether the node is a list.
func (n *Node) IsList() bool { return n.kind == sequence }

// Decode decodes the node into v, a pointer, as strictly as Into does.
func (n *Node) Decode(v any) error {
	d := &decoder{name: *n.file}
	d.root(n, v)
	return d.errs.Err()
}

// Errorf returns a diagnostic at the node's line.
func (n *Node) Errorf(format string, args ...any) *diag.Diagnostic {
	return diag.New(diag.ClassInput, format, args...).WithCode("decode.value").At("%s", n.at())
}

// File is the name of the file that the node stands in, as it was opened: what its relative paths are relative to.
func (n *Node) File() string { return *n.file }
