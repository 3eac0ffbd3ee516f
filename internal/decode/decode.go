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
	"slices"
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

// File reads path and decodes it into a pointer as schema ("hetc.soc/1"); see Into.
func File(path, schema string, into any) error {
	doc, err := ReadFile(path)
	if err != nil {
		return err
	}
	return doc.Into(schema, into)
}

// Bytes decodes data into a pointer as schema; name is shown in errors. See Into.
func Bytes(name string, data []byte, schema string, into any) error {
	doc, err := Parse(name, data)
	if err != nil {
		return err
	}
	return doc.Into(schema, into)
}

// Into decodes the document into a pointer. With a schema other than "" the document must be a
// mapping that says so under the key "schema"; that key needs no field there. The error is a
// *diag.Diagnostic or a diag.List of class ClassInput in the order of the document. What was decoded
// is then unspecified.
func (d *Document) Into(schema string, into any) error {
	if schema != "" {
		if err := d.checkSchema(schema); err != nil {
			return err
		}
	}
	dec := &decoder{name: d.name, schemaKey: schema != ""}
	dec.root(d.root, into)
	return dec.errs.Err()
}

// checkSchema compares the document's schema with the wanted one.
func (d *Document) checkSchema(want string) error {
	fail := func(line int, format string, args ...any) *diag.Diagnostic {
		return diag.New(diag.ClassInput, format, args...).WithCode("decode.schema").At("%s:%d", d.name, line)
	}
	if d.root.kind != mapping {
		return fail(d.root.line, "document is %s, want a mapping with %q", d.root.describe(), "schema: "+want)
	}
	schema := d.root.get("schema")
	if schema == nil {
		return fail(d.root.line, "key \"schema\" is missing, want %q", want).
			WithHint("add %q as the first line if this is such a file", "schema: "+want)
	}
	if schema.kind != scalar || schema.tag != "str" {
		return fail(schema.line, "schema is %s, want %q", schema.describe(), want)
	}
	if schema.text == want {
		return nil
	}
	wantKind, wantVersion, _ := strings.Cut(want, "/")
	kind, version, _ := strings.Cut(schema.text, "/")
	if kind != wantKind {
		diagnostic := fail(schema.line, "schema is %q, want %q", clip(schema.text), want)
		if strings.HasPrefix(kind, "hetc.") && diag.Nearest(kind, []string{wantKind}) == "" {
			return diagnostic.WithHint("this is a %s file, not a %s file",
				clip(strings.TrimPrefix(kind, "hetc.")), strings.TrimPrefix(wantKind, "hetc."))
		}
		return diagnostic.WithHint("did you mean %q?", want)
	}
	diagnostic := fail(schema.line, "schema is %q, want %q", clip(schema.text), want)
	have, err1 := strconv.Atoi(version)
	can, err2 := strconv.Atoi(wantVersion)
	if err1 == nil && err2 == nil && have > can {
		return diagnostic.WithHint("the file is from a newer hetc: update hetc")
	}
	return diagnostic.WithHint("this hetc reads version %s: make the file again", wantVersion)
}

// decoder walks nodes and Go values side by side.
type decoder struct {
	name      string
	schemaKey bool // a "schema" key at the root is allowed without a field
	errs      diag.List
}

// root decodes the whole of a document, or of what an Unmarshaler sees.
func (d *decoder) root(node *Node, into any) {
	rv := reflect.ValueOf(into)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("BUG: decode into %T, want a pointer", into))
	}
	d.value(node, rv.Elem(), node.path, true)
}

// full says that as many mistakes were found as are reported: nothing more is decoded then.
func (d *decoder) full() bool { return len(d.errs) >= maxErrors }

// fail notes a mistake. The caller may add a hint.
func (d *decoder) fail(line int, code, format string, args ...any) *diag.Diagnostic {
	diagnostic := diag.New(diag.ClassInput, format, args...).WithCode(code).At("%s:%d", d.name, line)
	if !d.full() {
		d.errs = append(d.errs, diagnostic)
	}
	return diagnostic
}

// in is " in PATH" for messages, empty at the root.
func in(path string) string {
	if path == "" {
		return ""
	}
	return " in " + path
}

// at names a place at the beginning of a message.
func at(path string) string {
	if path == "" {
		return "document"
	}
	return path
}

// value decodes a node into a Go value. path is where it stands, for messages; top says that it is the document.
func (d *decoder) value(node *Node, value reflect.Value, path string, top bool) {
	if d.full() || d.itself(node, value, path) {
		return
	}
	// A null leaves a value as it is without one, which only these kinds can express.
	if node.null() && slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Map, reflect.Slice}, value.Kind()) {
		value.SetZero()
		return
	}
	switch value.Kind() {
	case reflect.Pointer:
		target := reflect.New(value.Type().Elem())
		d.value(node, target.Elem(), path, top)
		value.Set(target)
	case reflect.Struct:
		if node.kind != mapping {
			d.want(node, path, "a mapping")
			return
		}
		d.structure(node, value, path, top)
	case reflect.Map:
		d.mapping(node, value, path, top)
	case reflect.Slice:
		if node.kind != sequence {
			d.want(node, path, "a list")
			return
		}
		// Not nil even where the list is empty: a list that is given and one that is left out differ.
		value.Set(reflect.MakeSlice(value.Type(), len(node.vals), len(node.vals)))
		d.items(node, value, path)
	case reflect.Array:
		if node.kind != sequence || len(node.vals) != value.Len() {
			d.want(node, path, fmt.Sprintf("a list of %d", value.Len()))
			return
		}
		d.items(node, value, path)
	case reflect.Interface:
		// What is read is never chosen by the file: only any is filled, with plain values.
		if value.NumMethod() != 0 {
			panic(fmt.Sprintf("BUG: decode into interface %s", value.Type()))
		}
		value.SetZero()
		if found := d.any(node); found != nil {
			value.Set(reflect.ValueOf(found))
		}
	default:
		d.scalar(node, value, path)
	}
}

// want says what had to be in place of a node.
func (d *decoder) want(node *Node, path, what string) *diag.Diagnostic {
	return d.fail(node.line, "decode.type", "%s is %s, want %s", at(path), node.describe(), what)
}

// itself lets a value read itself, if its type can.
func (d *decoder) itself(node *Node, value reflect.Value, path string) bool {
	if !value.CanAddr() || value.Kind() == reflect.Pointer {
		return false
	}
	switch into := value.Addr().Interface().(type) {
	case Unmarshaler:
		node.path = path
		if err := into.UnmarshalNode(node); err != nil {
			d.adopt(node, path, err)
		}
	case encoding.TextUnmarshaler:
		if node.kind != scalar || node.tag == "null" {
			d.want(node, path, "a single value")
		} else if err := into.UnmarshalText([]byte(node.text)); err != nil {
			d.fail(node.line, "decode.value", "%s: %w", at(path), err)
		}
	default:
		return false
	}
	return true
}

// mapping decodes into a map. Keys are values too: their types may read themselves.
func (d *decoder) mapping(node *Node, value reflect.Value, path string, top bool) {
	if node.kind != mapping {
		d.want(node, path, "a mapping")
		return
	}
	out := reflect.MakeMapWithSize(value.Type(), len(node.keys))
	for i, keyNode := range node.keys {
		if top && d.schemaKey && keyNode.text == "schema" {
			continue
		}
		key := reflect.New(value.Type().Key()).Elem()
		d.value(keyNode, key, "key "+strconv.Quote(clip(keyNode.text))+in(path), false)
		elem := reflect.New(value.Type().Elem()).Elem()
		d.value(node.vals[i], elem, join(path, clip(keyNode.text)), false)
		if d.full() {
			return
		}
		out.SetMapIndex(key, elem)
	}
	value.Set(out)
}

// items decodes those of a list into a slice or array of as many.
func (d *decoder) items(node *Node, value reflect.Value, path string) {
	for i, item := range node.vals {
		d.value(item, value.Index(i), fmt.Sprintf("%s[%d]", path, i), false)
	}
}

// scalar decodes a single value. Numbers must fit exactly but for the rounding of floats.
func (d *decoder) scalar(node *Node, value reflect.Value, path string) {
	switch value.Kind() {
	case reflect.String:
		// To YAML the words true and false are truth values, even where a text is wanted.
		if node.kind == scalar && node.tag == "bool" {
			d.want(node, path, "text").Hint = "put it in quotes"
			return
		}
		if node.kind != scalar || node.tag == "null" {
			d.want(node, path, "text")
			return
		}
		value.SetString(node.text)
	case reflect.Bool:
		truth, err := strconv.ParseBool(strings.ToLower(node.text))
		if node.kind != scalar || node.tag != "bool" || err != nil {
			d.want(node, path, "true or false")
			return
		}
		value.SetBool(truth)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		number, err := node.int()
		if err != nil || value.OverflowInt(number) {
			d.want(node, path, fmt.Sprintf("a whole number of at most %d bits", value.Type().Bits()))
			return
		}
		value.SetInt(number)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		number, err := node.uint()
		if err != nil || value.OverflowUint(number) {
			d.want(node, path, fmt.Sprintf("a whole number from 0 of at most %d bits", value.Type().Bits()))
			return
		}
		value.SetUint(number)
	case reflect.Float32, reflect.Float64:
		number, err := node.float()
		if err != nil || value.OverflowFloat(number) {
			d.want(node, path, "a finite number")
			return
		}
		value.SetFloat(number)
	default:
		panic(fmt.Sprintf("BUG: decode into %s", value.Type()))
	}
}

// adopt adds the error of an Unmarshaler; diagnostics keep their line.
func (d *decoder) adopt(node *Node, path string, err error) {
	add := func(diagnostic *diag.Diagnostic) {
		if d.full() {
			return
		}
		if diagnostic.Path == "" {
			diagnostic.Path = node.at()
		}
		d.errs = append(d.errs, diagnostic)
	}
	switch err := err.(type) {
	case *diag.Diagnostic:
		add(err)
	case diag.List:
		for _, one := range err {
			add(one)
		}
	default:
		d.fail(node.line, "decode.value", "%s: %w", at(path), err)
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
func fieldsOf(typ reflect.Type) []field {
	var out []field
	for i := range typ.NumField() {
		member := typ.Field(i)
		if !member.IsExported() && !member.Anonymous {
			continue
		}
		tag, ok := member.Tag.Lookup("yaml")
		if !ok {
			tag = member.Tag.Get("json")
		}
		name, opts, _ := strings.Cut(tag, ",")
		if name == "-" {
			continue
		}
		embedded := member.Anonymous && name == "" && member.Type.Kind() == reflect.Struct
		if embedded || strings.Contains(opts, "inline") {
			for _, sub := range fieldsOf(member.Type) {
				sub.index = append([]int{i}, sub.index...)
				out = append(out, sub)
			}
			continue
		}
		if name == "" {
			name = strings.ToLower(member.Name)
		}
		out = append(out, field{name: name, index: []int{i}, required: member.Tag.Get("decode") == "required"})
	}
	return out
}

// structure decodes into a struct. A key that it does not have is a mistake, so that a misspelled option is noticed.
func (d *decoder) structure(node *Node, value reflect.Value, path string, top bool) {
	fields := fieldsOf(value.Type())
	names := make([]string, len(fields))
	byName := make(map[string]field, len(fields))
	for i, field := range fields {
		names[i] = field.name
		byName[field.name] = field
	}
	for i, key := range node.keys {
		field, ok := byName[key.text]
		if !ok {
			if top && d.schemaKey && key.text == "schema" {
				continue
			}
			diagnostic := d.fail(key.line, "decode.unknown-key", "unknown key %q%s", clip(key.text), in(path))
			diagnostic.Hint = diag.DidYouMean(key.text, names)
			continue
		}
		d.value(node.vals[i], value.FieldByIndex(field.index), join(path, field.name), false)
	}
	for _, field := range fields {
		if field.required && node.get(field.name) == nil {
			d.fail(node.line, "decode.missing-key", "key %q is missing%s", field.name, in(path))
		}
	}
}

// join returns the path of a key below another path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// any decodes into map[string]any, []any, string, int64, float64, bool or nil.
func (d *decoder) any(node *Node) any {
	switch node.kind {
	case mapping:
		out := make(map[string]any, len(node.keys))
		for i, key := range node.keys {
			out[key.text] = d.any(node.vals[i])
		}
		return out
	case sequence:
		out := make([]any, len(node.vals))
		for i, item := range node.vals {
			out[i] = d.any(item)
		}
		return out
	}
	switch node.tag {
	case "null":
		return nil
	case "bool":
		return strings.EqualFold(node.text, "true")
	case "int":
		if number, err := node.int(); err == nil {
			return number
		}
	case "str":
		return node.text
	}
	number, err := node.float()
	if err != nil {
		d.fail(node.line, "decode.type", "number %s is not finite", clip(node.text))
	}
	return number
}

// null reports whether nothing stands at the node.
func (n *Node) null() bool { return n.kind == scalar && n.tag == "null" }

var errNumber = fmt.Errorf("not a number")

// number returns the text of a numeric scalar without the separators YAML allows.
func (n *Node) number(tags ...string) (string, error) {
	if n.kind == scalar {
		if slices.Contains(tags, n.tag) {
			return strings.ReplaceAll(n.text, "_", ""), nil
		}
	}
	return "", errNumber
}

// octal reports a leading zero, which some readers take as base 8 and some as base 10.
func octal(text string) bool {
	text = strings.TrimLeft(text, "+-")
	return len(text) > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9'
}

// int returns the value of a whole number, also in the notations with a prefix (0x1f).
func (n *Node) int() (int64, error) {
	text, err := n.number("int")
	if err != nil || octal(text) {
		return 0, errNumber
	}
	return strconv.ParseInt(text, 0, 64)
}

// uint is int for numbers from 0 that may have all bits.
func (n *Node) uint() (uint64, error) {
	text, err := n.number("int")
	if err != nil || octal(text) {
		return 0, errNumber
	}
	return strconv.ParseUint(strings.TrimPrefix(text, "+"), 0, 64)
}

// float returns the value of a number. A whole number with a prefix, which is no float in Go, is one here.
func (n *Node) float() (float64, error) {
	text, err := n.number("int", "float")
	if err != nil || octal(text) {
		return 0, errNumber
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil {
		i, err := strconv.ParseInt(text, 0, 64)
		return float64(i), err
	}
	if math.IsInf(number, 0) || math.IsNaN(number) {
		return 0, errNumber
	}
	return number, nil
}

// ---- what an Unmarshaler sees

// at returns the file and line of a node.
func (n *Node) at() string { return fmt.Sprintf("%s:%d", *n.file, n.line) }

// IsMapping reports whether the node is a mapping.
func (n *Node) IsMapping() bool { return n.kind == mapping }

// Decode decodes the node into a pointer, as strictly as Into does.
func (n *Node) Decode(into any) error {
	inner := &decoder{name: *n.file}
	inner.root(n, into)
	return inner.errs.Err()
}

// Errorf returns a diagnostic at the node's line.
func (n *Node) Errorf(format string, args ...any) *diag.Diagnostic {
	return diag.New(diag.ClassInput, format, args...).WithCode("decode.value").At("%s", n.at())
}

// File returns the name of the file that the node stands in, as it was opened: what its relative paths are relative to.
func (n *Node) File() string { return *n.file }
