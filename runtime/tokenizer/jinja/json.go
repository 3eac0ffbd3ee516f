package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// FromJSON reads a JSON document; objects keep their order.
func FromJSON(data []byte) (Value, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	// Numbers stay texts until readJSON decides between integer and float.
	decoder.UseNumber()
	value, err := readJSON(decoder, 0)
	if err != nil {
		return nil, err
	}
	_, err = decoder.Token()
	if errors.Is(err, io.EOF) {
		return value, nil
	}
	if err == nil {
		err = errors.New("data after the document")
	}
	return nil, err
}

// readJSON reads a value. A number that does not fit into 64 bits becomes a float.
func readJSON(decoder *json.Decoder, depth int) (Value, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxNesting {
		return nil, fmt.Errorf("more than %d lists and objects in each other", maxNesting)
	}
	switch token := token.(type) {
	case json.Number:
		whole, err := strconv.ParseInt(string(token), 10, 64)
		if err == nil {
			return whole, nil
		}
		return token.Float64()
	case json.Delim:
		if token == '[' {
			return readJSONList(decoder, depth)
		}
		return readJSONObject(decoder, depth)
	}
	return token, nil
}

// readJSONList reads items up to the bracket that ends them, and that.
func readJSONList(decoder *json.Decoder, depth int) (Value, error) {
	list := &List{}
	for decoder.More() {
		item, err := readJSON(decoder, depth+1)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, item)
	}
	_, err := decoder.Token()
	return list, err
}

// readJSONObject reads pairs. Of two with one key the later counts, in the place of the first.
func readJSONObject(decoder *json.Decoder, depth int) (Value, error) {
	dict := &Dict{}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		value, err := readJSON(decoder, depth+1)
		if err != nil {
			return nil, err
		}
		dict.Set(key.(string), value)
	}
	_, err := decoder.Token()
	return dict, err
}

// jsonStyle holds the options of tojson.
type jsonStyle struct {
	ascii, sort bool
	indent      string
	lines       bool   // a line for each item
	item, key   string // what follows an item, and a key
}

// jsonWriter writes values as json.dumps of Python does, and charges steps, memory and depth.
type jsonWriter struct {
	env   *environment
	out   *builder
	style *jsonStyle
}

// value writes a value of a type that JSON has; undefined values have none.
func (w *jsonWriter) value(value Value, depth int) {
	w.env.spend(1)
	w.env.checkDepth(depth)
	switch value := value.(type) {
	case nil:
		w.out.writeString("null")
	case bool:
		w.out.writeString(strconv.FormatBool(value))
	case int64:
		w.out.writeString(strconv.FormatInt(value, 10))
	case float64:
		w.out.writeString(jsonFloat(value))
	case string:
		w.text(value)
	case *List:
		w.list(value.Items, depth)
	case tuple:
		w.list(value, depth)
	case *Dict:
		w.dict(value, depth)
	default:
		w.env.fail("object of type %s is not JSON serializable", typeName(value))
	}
}

// group writes count items between brackets.
func (w *jsonWriter) group(open, end string, count, depth int, item func(i int)) {
	// Brackets without items stay on one line, as json.dumps writes them.
	line := func(depth int) {
		if w.style.lines && count > 0 {
			w.out.writeByte('\n')
			w.out.repeat(w.style.indent, depth)
		}
	}
	w.out.writeString(open)
	for i := range count {
		if i > 0 {
			w.out.writeString(w.style.item)
		}
		line(depth + 1)
		item(i)
	}
	line(depth)
	w.out.writeString(end)
}

// list writes a list or tuple: JSON has one kind of them.
func (w *jsonWriter) list(items []Value, depth int) {
	w.group("[", "]", len(items), depth, func(i int) { w.value(items[i], depth+1) })
}

// dict writes a mapping in the order of its keys if the style sorts, else in that in which they were added.
func (w *jsonWriter) dict(dict *Dict, depth int) {
	w.env.allocate(8 * len(dict.keys))
	// Positions are sorted instead of pairs, because keys and values are two lists.
	order := make([]int, len(dict.keys))
	for i := range order {
		order[i] = i
	}
	if w.style.sort {
		slices.SortStableFunc(order, func(i, j int) int { return w.env.compare(dict.keys[i], dict.keys[j]) })
	}
	w.group("{", "}", len(order), depth, func(i int) {
		w.key(dict.keys[order[i]])
		w.out.writeString(w.style.key)
		w.value(dict.values[order[i]], depth+1)
	})
}

// key writes a key of a mapping. Those that are no strings become some.
func (w *jsonWriter) key(key Value) {
	switch key := key.(type) {
	case string:
		w.text(key)
	case nil:
		w.out.writeString(`"null"`)
	case bool:
		w.out.writeString(strconv.Quote(strconv.FormatBool(key)))
	case int64:
		w.out.writeString(strconv.Quote(strconv.FormatInt(key, 10)))
	case float64:
		w.out.writeString(strconv.Quote(jsonFloat(key)))
	default:
		w.env.fail("keys must be str, int, float, bool or None, not %s", typeName(key))
	}
}

// jsonFloat writes what JSON has no word for as Python does.
func jsonFloat(float float64) string {
	switch text := formatFloat(float); text {
	case "inf":
		return "Infinity"
	case "-inf":
		return "-Infinity"
	case "nan":
		return "NaN"
	default:
		return text
	}
}

// text writes a string with as few escapes as JSON permits, or only ASCII characters.
func (w *jsonWriter) text(text string) {
	w.env.scan(len(text))
	w.out.writeByte('"')
	for _, char := range text {
		switch {
		case char == '"' || char == '\\':
			w.out.writeByte('\\')
			w.out.writeRune(char)
		case char < 0x20:
			if i := strings.IndexRune("\b\f\n\r\t", char); i >= 0 {
				w.out.writeByte('\\')
				w.out.writeByte("bfnrt"[i])
			} else {
				escape(w.out, 'u', char, 4)
			}
		case char < utf8.RuneSelf && !(w.style.ascii && char == 0x7f) || !w.style.ascii:
			w.out.writeRune(char)
		case char >= 0x10000: // two of UTF-16
			char -= 0x10000
			escape(w.out, 'u', 0xd800+char>>10, 4)
			escape(w.out, 'u', 0xdc00+char&0x3ff, 4)
		default:
			escape(w.out, 'u', char, 4)
		}
	}
	w.out.writeByte('"')
}
