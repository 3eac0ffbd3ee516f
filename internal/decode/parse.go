package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// Bounds of a document. They are far above anything hetc writes and keep hostile input cheap:
// they are checked while the tree is built, aliases count as often as they are expanded.
const (
	MaxBytes = 16 << 20
	maxNodes = 1 << 20
	maxDepth = 64
)

// Document is a parsed file, not yet decoded into a type.
type Document struct {
	name string
	root *Node
}

type kind int

const (
	scalar kind = iota
	mapping
	sequence
)

// Node is one value of a document: a scalar, a mapping or a list.
type Node struct {
	file *string
	kind kind
	tag  string // scalars: "str", "int", "float", "bool", "null"
	text string // scalars: as written, without quotes
	line int
	keys []*Node
	vals []*Node
	path string // from the root, once an Unmarshaler sees it
}

// ReadFile reads and parses a regular file; "-" is not special. A missing file is of class ClassInput,
// a read that fails is of class ClassIO.
func ReadFile(path string) (*Document, error) {
	f, err := wholefile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, diag.New(diag.ClassIO, "read %q: %w", path, err)
	}
	return Parse(path, data)
}

// Parse parses YAML or JSON; name is shown in errors. A document that starts with '{' and is
// valid JSON, or whose name ends in .json or .jsonl, is read as JSON.
func Parse(name string, data []byte) (*Document, error) {
	return parse(name, 1, data, isJSON(name, data), MaxBytes)
}

// ParseLarge is Parse of a document of at most most bytes, for formats that hold vectors as text.
func ParseLarge(name string, data []byte, most int) (*Document, error) {
	return parse(name, 1, data, isJSON(name, data), most)
}

// ParseJSON parses a piece of a file that starts at the given line, such as one line of a
// JSON-lines file, as JSON.
func ParseJSON(name string, line int, data []byte) (*Document, error) {
	return parse(name, line, data, true, MaxBytes)
}

func parse(name string, line int, data []byte, asJSON bool, most int) (*Document, error) {
	p := &parser{name: name, first: line}
	if len(data) > most {
		return nil, p.fail(line, "document is larger than %d MiB", most>>20)
	}
	if !utf8.Valid(data) {
		return nil, p.fail(line+invalidLine(data), "not valid UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var root *Node
	var err error
	if asJSON {
		root, err = p.json(data)
	} else {
		root, err = p.yaml(data)
	}
	if err != nil {
		return nil, err
	}
	return &Document{name: name, root: root}, nil
}

func invalidLine(data []byte) int {
	n := 0
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError && size == 1 {
			break
		}
		if r == '\n' {
			n++
		}
		data = data[size:]
	}
	return n
}

func isJSON(name string, data []byte) bool {
	if strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".jsonl") {
		return true
	}
	t := bytes.TrimLeft(data, " \t\r\n")
	return len(t) > 0 && t[0] == '{' && json.Valid(data)
}

type parser struct {
	name  string
	first int // line of the first byte
	nodes int
}

func (p *parser) fail(line int, format string, args ...any) *diag.Diagnostic {
	return diag.New(diag.ClassInput, format, args...).WithCode("decode.syntax").At("%s:%d", p.name, line)
}

// count bounds the size of the tree, one call per node.
func (p *parser) count(line, depth int) error {
	p.nodes++
	if p.nodes > maxNodes {
		return p.fail(line, "more than %d values", maxNodes)
	}
	if depth > maxDepth {
		return p.fail(line, "nested deeper than %d levels", maxDepth)
	}
	return nil
}

// duplicate refuses a key seen before in the same mapping.
func (p *parser) duplicate(seen map[string]int, key *Node) error {
	if first, dup := seen[key.text]; dup {
		return p.fail(key.line, "key %q appears twice, first in line %d", clip(key.text), first).WithHint("remove one of them")
	}
	seen[key.text] = key.line
	return nil
}

// ---- YAML

var yamlLine = regexp.MustCompile(`line (\d+): `)

func (p *parser) yaml(data []byte) (root *Node, err error) {
	// The nesting bound of the parser below is larger than ours, its memory is proportional to the input.
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if err == io.EOF {
			return nil, p.fail(p.first, "document is empty")
		}
		return nil, p.yamlError(err)
	}
	var next yaml.Node
	if err := dec.Decode(&next); err == nil {
		return nil, p.fail(p.line(next.Content[0]), "more than one document").WithHint("keep one document per file")
	} else if err != io.EOF {
		return nil, p.yamlError(err)
	}
	if len(doc.Content) != 1 {
		return nil, p.fail(p.first, "document is empty")
	}
	return p.convert(doc.Content[0], 0, map[*yaml.Node]bool{})
}

// yamlError turns "yaml: line 3: text" into a diagnostic at line 3.
func (p *parser) yamlError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := p.first
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = p.first + n - 1
		}
		text = strings.Replace(text, m[0], "", 1)
	}
	return p.fail(line, "not valid YAML: %s", text)
}

func (p *parser) line(n *yaml.Node) int { return p.first + max(n.Line, 1) - 1 }

func (p *parser) convert(n *yaml.Node, depth int, open map[*yaml.Node]bool) (*Node, error) {
	line := p.line(n)
	if n.Kind == yaml.AliasNode {
		if open[n.Alias] {
			return nil, p.fail(line, "alias %q contains itself", clip(n.Value))
		}
		return p.convert(n.Alias, depth, open)
	}
	if err := p.count(line, depth); err != nil {
		return nil, err
	}
	out := &Node{file: &p.name, line: line}
	switch n.Kind {
	case yaml.ScalarNode:
		out.text = n.Value
		switch tag := n.ShortTag(); tag {
		case "!!str", "!!int", "!!float", "!!bool", "!!null":
			out.tag = tag[2:]
		case "!!timestamp":
			out.tag = "str"
		default:
			return nil, p.fail(line, "tag %q is not supported", clip(tag))
		}
		return out, nil
	case yaml.MappingNode, yaml.SequenceNode:
	default:
		return nil, p.fail(line, "unexpected YAML node")
	}
	if tag := n.ShortTag(); tag != "!!map" && tag != "!!seq" {
		return nil, p.fail(line, "tag %q is not supported", clip(tag))
	}
	open[n] = true
	defer delete(open, n)
	if n.Kind == yaml.SequenceNode {
		out.kind = sequence
		for _, c := range n.Content {
			v, err := p.convert(c, depth+1, open)
			if err != nil {
				return nil, err
			}
			out.vals = append(out.vals, v)
		}
		return out, nil
	}
	out.kind = mapping
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind == yaml.ScalarNode && k.ShortTag() == "!!merge" {
			return nil, p.fail(p.line(k), "merge keys (<<) are not supported").WithHint("write the keys out")
		}
		key, err := p.convert(k, depth+1, open)
		if err != nil {
			return nil, err
		}
		if key.kind != scalar {
			return nil, p.fail(key.line, "a key must be a word, got a %s", key.describe())
		}
		if err := p.duplicate(seen, key); err != nil {
			return nil, err
		}
		v, err := p.convert(n.Content[i+1], depth+1, open)
		if err != nil {
			return nil, err
		}
		out.keys, out.vals = append(out.keys, key), append(out.vals, v)
	}
	return out, nil
}

// ---- JSON

func (p *parser) json(data []byte) (*Node, error) {
	lines := lineCounter{data: data, line: p.first}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			lines.to(syntax.Offset)
			return nil, p.fail(lines.line, "not valid JSON: %s", syntax.Error())
		}
		return nil, p.fail(p.first, "not valid JSON: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return p.jsonValue(dec, &lines, 0)
}

// lineCounter finds lines of increasing offsets in one pass.
type lineCounter struct {
	data []byte
	pos  int
	line int
}

func (l *lineCounter) to(offset int64) {
	end := min(int(offset), len(l.data))
	if end > l.pos {
		l.line += bytes.Count(l.data[l.pos:end], []byte("\n"))
		l.pos = end
	}
}

func (p *parser) jsonValue(dec *json.Decoder, lines *lineCounter, depth int) (*Node, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, p.fail(lines.line, "not valid JSON: %w", err)
	}
	lines.to(dec.InputOffset())
	out := &Node{file: &p.name, line: lines.line}
	if err := p.count(out.line, depth); err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case nil:
		out.tag = "null"
	case bool:
		out.tag, out.text = "bool", strconv.FormatBool(t)
	case string:
		out.tag, out.text = "str", t
	case json.Number:
		out.tag, out.text = "int", t.String()
		if strings.ContainsAny(out.text, ".eE") {
			out.tag = "float"
		}
	case json.Delim:
		if t == '[' {
			out.kind = sequence
			for dec.More() {
				v, err := p.jsonValue(dec, lines, depth+1)
				if err != nil {
					return nil, err
				}
				out.vals = append(out.vals, v)
			}
		} else {
			out.kind = mapping
			seen := map[string]int{}
			for dec.More() {
				key, err := p.jsonValue(dec, lines, depth+1)
				if err != nil {
					return nil, err
				}
				if err := p.duplicate(seen, key); err != nil {
					return nil, err
				}
				v, err := p.jsonValue(dec, lines, depth+1)
				if err != nil {
					return nil, err
				}
				out.keys, out.vals = append(out.keys, key), append(out.vals, v)
			}
		}
		if _, err := dec.Token(); err != nil {
			return nil, p.fail(lines.line, "not valid JSON: %w", err)
		}
	}
	return out, nil
}

// describe names what a node is, for messages.
func (n *Node) describe() string {
	switch n.kind {
	case mapping:
		return "mapping"
	case sequence:
		return "list"
	}
	switch n.tag {
	case "null":
		return "empty value"
	case "str":
		return fmt.Sprintf("text %q", clip(n.text))
	case "bool":
		return "truth value " + clip(n.text)
	}
	return "number " + clip(n.text)
}

// clip keeps hostile text out of messages.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// Name is the name given to Parse.
func (d *Document) Name() string { return d.name }

// Schema is the text of the document's schema key, "" when it has none.
func (d *Document) Schema() string {
	if n := d.root.get("schema"); n != nil && n.kind == scalar && n.tag == "str" {
		return n.text
	}
	return ""
}

// At returns "name:line" of the value at path (keys as string, list positions as int), or of the
// nearest ancestor that exists, so that later checks can point into the file.
func (d *Document) At(path ...any) string {
	n := d.root
	line := n.line
	for _, step := range path {
		next, at := (*Node)(nil), 0
		switch s := step.(type) {
		case string:
			if n.kind == mapping {
				for i, k := range n.keys {
					if k.text == s {
						next, at = n.vals[i], k.line
					}
				}
			}
		case int:
			if n.kind == sequence && s >= 0 && s < len(n.vals) {
				next, at = n.vals[s], n.vals[s].line
			}
		}
		if next == nil {
			break
		}
		n, line = next, at
	}
	return fmt.Sprintf("%s:%d", d.name, line)
}

func (n *Node) get(key string) *Node {
	if n.kind != mapping {
		return nil
	}
	for i, k := range n.keys {
		if k.text == key {
			return n.vals[i]
		}
	}
	return nil
}
