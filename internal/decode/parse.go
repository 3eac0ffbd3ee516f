package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
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
	maxBytes = 16 << 20
	maxNodes = 1 << 20
	maxDepth = 64
)

// Document is a parsed file, not yet decoded into a type.
type Document struct {
	name string
	root *Node
}

// kind is that of a node.
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
	file, err := wholefile.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return nil, diag.New(diag.ClassIO, "read %q: %w", path, err)
	}
	return Parse(path, data)
}

// Parse parses YAML or JSON; name is shown in errors. A document that starts with '{' and is
// valid JSON, or whose name ends in .json or .jsonl, is read as JSON.
func Parse(name string, data []byte) (*Document, error) {
	return parse(name, 1, data, isJSON(name, data), maxBytes)
}

// ParseLarge is Parse of a document of at most most bytes, for formats that hold vectors as text.
func ParseLarge(name string, data []byte, most int) (*Document, error) {
	return parse(name, 1, data, isJSON(name, data), most)
}

// ParseJSON parses a piece of a file that starts at the given line, such as one line of a
// JSON-lines file, as JSON.
func ParseJSON(name string, line int, data []byte) (*Document, error) {
	return parse(name, line, data, true, maxBytes)
}

// parse checks what both formats must have: a size within bounds and valid UTF-8.
func parse(name string, line int, data []byte, asJSON bool, most int) (*Document, error) {
	in := &parser{name: name, first: line}
	if what, where := foreign(data); what != "" {
		return nil, in.fail(line, "document is %s, want YAML or JSON", what).WithHint("%s", where)
	}
	if len(data) > most {
		return nil, in.fail(line, "document is larger than %d MiB", most>>20)
	}
	if !utf8.Valid(data) {
		return nil, in.fail(line+invalidLine(data), "not valid UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var root *Node
	var err error
	if asJSON {
		root, err = in.json(data)
	} else {
		root, err = in.yaml(data)
	}
	if err != nil {
		return nil, err
	}
	return &Document{name: name, root: root}, nil
}

// foreign names a file of another form, "" where the data may be a document, and where such a file belongs. It is
// refused before it is parsed: a message that quotes the text of a document must not quote a private key.
func foreign(data []byte) (what, where string) {
	const keys = "keys go with --key (NAME.key) and --trust (NAME.pub)"
	switch first, _, _ := bytes.Cut(data, []byte("\n")); {
	case bytes.HasPrefix(first, []byte("\x89HETB")):
		return "a bundle", "give the file that the bundle was made from; hetc inspect shows what a bundle holds"
	case !bytes.HasPrefix(bytes.TrimSpace(first), []byte("-----BEGIN ")):
		return "", ""
	case bytes.Contains(first, []byte("PRIVATE KEY")):
		return "a private key", keys
	}
	return "a public key or certificate", keys
}

// invalidLine returns how many lines come before the first byte that is not UTF-8.
func invalidLine(data []byte) int {
	count := 0
	for len(data) > 0 {
		char, size := utf8.DecodeRune(data)
		if char == utf8.RuneError && size == 1 {
			break
		}
		if char == '\n' {
			count++
		}
		data = data[size:]
	}
	return count
}

// isJSON reports whether a document is to be read as JSON; see Parse.
func isJSON(name string, data []byte) bool {
	if strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".jsonl") {
		return true
	}
	text := bytes.TrimLeft(data, " \t\r\n")
	return len(text) > 0 && text[0] == '{' && json.Valid(data)
}

// parser makes the tree of one document.
type parser struct {
	name  string
	first int // line of the first byte
	nodes int
}

// fail returns an error of the document's syntax.
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
		return p.fail(key.line, "key %q appears twice, first in line %d", clip(key.text), first).
			WithHint("remove one of them")
	}
	seen[key.text] = key.line
	return nil
}

// ---- YAML

var yamlLine = regexp.MustCompile(`line (\d+): `)

// yaml reads the only document of a YAML file.
func (p *parser) yaml(data []byte) (root *Node, err error) {
	// The nesting bound of the parser below is larger than ours, its memory is proportional to the input.
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, p.fail(p.first, "document is empty")
		}
		return nil, p.yamlError(err)
	}
	var next yaml.Node
	if err := dec.Decode(&next); err == nil {
		return nil, p.fail(p.line(next.Content[0]), "more than one document").WithHint("keep one document per file")
	} else if !errors.Is(err, io.EOF) {
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
	if match := yamlLine.FindStringSubmatch(text); match != nil {
		if offset, err := strconv.Atoi(match[1]); err == nil {
			line = p.first + offset - 1
		}
		text = strings.Replace(text, match[0], "", 1)
	}
	return p.fail(line, "not valid YAML: %s", text)
}

// line returns the line of a node in the file.
func (p *parser) line(node *yaml.Node) int { return p.first + max(node.Line, 1) - 1 }

// convert makes a tree of a YAML node. open are the nodes around it, which no alias in it may stand for.
func (p *parser) convert(node *yaml.Node, depth int, open map[*yaml.Node]bool) (*Node, error) {
	line := p.line(node)
	if node.Kind == yaml.AliasNode {
		// Aliases are followed, so each is counted as often as it occurs: a short file of nested aliases meets the
		// limit on nodes like a long one.
		if open[node.Alias] {
			return nil, p.fail(line, "alias %q contains itself", clip(node.Value))
		}
		return p.convert(node.Alias, depth, open)
	}
	if err := p.count(line, depth); err != nil {
		return nil, err
	}
	out := &Node{file: &p.name, line: line}
	if node.Kind == yaml.ScalarNode {
		out.text = node.Value
		switch tag := node.ShortTag(); tag {
		case "!!str", "!!int", "!!float", "!!bool", "!!null":
			out.tag = tag[2:]
		// A date is a word like any other here.
		case "!!timestamp":
			out.tag = "str"
		default:
			return nil, p.fail(line, "tag %q is not supported", clip(tag))
		}
		return out, nil
	}
	if node.Kind != yaml.MappingNode && node.Kind != yaml.SequenceNode {
		return nil, p.fail(line, "unexpected YAML node")
	}
	if tag := node.ShortTag(); tag != "!!map" && tag != "!!seq" {
		return nil, p.fail(line, "tag %q is not supported", clip(tag))
	}
	open[node] = true
	defer delete(open, node)
	if node.Kind == yaml.MappingNode {
		return out, p.pairs(out, node, depth, open)
	}
	out.kind = sequence
	for _, item := range node.Content {
		value, err := p.convert(item, depth+1, open)
		if err != nil {
			return nil, err
		}
		out.vals = append(out.vals, value)
	}
	return out, nil
}

// pairs converts the keys and values of a mapping.
func (p *parser) pairs(out *Node, node *yaml.Node, depth int, open map[*yaml.Node]bool) error {
	out.kind = mapping
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		keyNode := node.Content[i]
		if keyNode.Kind == yaml.ScalarNode && keyNode.ShortTag() == "!!merge" {
			return p.fail(p.line(keyNode), "merge keys (<<) are not supported").WithHint("write the keys out")
		}
		key, err := p.convert(keyNode, depth+1, open)
		if err != nil {
			return err
		}
		if key.kind != scalar {
			return p.fail(key.line, "a key must be a word, got %s", key.describe())
		}
		if err := p.duplicate(seen, key); err != nil {
			return err
		}
		value, err := p.convert(node.Content[i+1], depth+1, open)
		if err != nil {
			return err
		}
		out.keys, out.vals = append(out.keys, key), append(out.vals, value)
	}
	return nil
}

// ---- JSON

// json reads a JSON document. It is checked as a whole first, which gives better errors than its tokens.
func (p *parser) json(data []byte) (*Node, error) {
	lines := lineCounter{data: data, line: p.first}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			lines.to(syntax.Offset)
			failure := p.fail(lines.line, "not valid JSON: %s", syntax.Error())
			first, _, several := bytes.Cut(data, []byte("\n"))
			if several && json.Valid(first) && bytes.Contains(first, []byte(`"hetc.record/`)) {
				return nil, failure.WithHint("this is a record of hetc profile, a JSON document on each line")
			}
			return nil, failure
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

// to moves on to an offset.
func (l *lineCounter) to(offset int64) {
	end := min(int(offset), len(l.data))
	if end > l.pos {
		l.line += bytes.Count(l.data[l.pos:end], []byte("\n"))
		l.pos = end
	}
}

// jsonValue reads the next value. The decoder knows offsets only, which lines turns into lines.
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
	switch tok := tok.(type) {
	case nil:
		out.tag = "null"
	case bool:
		out.tag, out.text = "bool", strconv.FormatBool(tok)
	case string:
		out.tag, out.text = "str", tok
	case json.Number:
		out.tag, out.text = "int", tok.String()
		if strings.ContainsAny(out.text, ".eE") {
			out.tag = "float"
		}
	case json.Delim:
		out.kind = sequence
		if tok == '{' {
			out.kind = mapping
		}
		return out, p.jsonItems(out, dec, lines, depth)
	}
	return out, nil
}

// jsonItems reads what a list or an object holds, and its end.
func (p *parser) jsonItems(out *Node, dec *json.Decoder, lines *lineCounter, depth int) error {
	seen := map[string]int{}
	for dec.More() {
		if out.kind == mapping {
			key, err := p.jsonValue(dec, lines, depth+1)
			if err != nil {
				return err
			}
			if err := p.duplicate(seen, key); err != nil {
				return err
			}
			out.keys = append(out.keys, key)
		}
		value, err := p.jsonValue(dec, lines, depth+1)
		if err != nil {
			return err
		}
		out.vals = append(out.vals, value)
	}
	if _, err := dec.Token(); err != nil {
		return p.fail(lines.line, "not valid JSON: %w", err)
	}
	return nil
}

// describe says with its article what a node is, for messages.
func (n *Node) describe() string {
	switch n.kind {
	case mapping:
		return "a mapping"
	case sequence:
		return "a list"
	}
	switch n.tag {
	case "null":
		return "empty"
	case "str":
		return fmt.Sprintf("a text %q", clip(n.text))
	case "bool":
		return "a truth value " + clip(n.text)
	}
	return "a number " + clip(n.text)
}

// clip keeps hostile text out of messages.
func clip(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "..."
}

// Name returns the name given to Parse.
func (d *Document) Name() string { return d.name }

// Schema returns the text of the document's schema key, "" when it has none.
func (d *Document) Schema() string {
	if node := d.root.get("schema"); node != nil && node.kind == scalar && node.tag == "str" {
		return node.text
	}
	return ""
}

// At returns "name:line" of the value at path (keys as string, list positions as int), or of the
// nearest ancestor that exists, so that later checks can point into the file.
func (d *Document) At(path ...any) string {
	node := d.root
	line := node.line
	for _, step := range path {
		next, at := (*Node)(nil), 0
		switch step := step.(type) {
		case string:
			if i := node.index(step); i >= 0 {
				next, at = node.vals[i], node.keys[i].line
			}
		case int:
			if node.kind == sequence && step >= 0 && step < len(node.vals) {
				next, at = node.vals[step], node.vals[step].line
			}
		}
		if next == nil {
			break
		}
		node, line = next, at
	}
	return fmt.Sprintf("%s:%d", d.name, line)
}

// index returns the position of a key in a mapping, -1 if there is none.
func (n *Node) index(key string) int {
	return slices.IndexFunc(n.keys, func(candidate *Node) bool { return candidate.text == key })
}

// get returns the value of a key in a mapping, nil if there is none.
func (n *Node) get(key string) *Node {
	if i := n.index(key); i >= 0 {
		return n.vals[i]
	}
	return nil
}
