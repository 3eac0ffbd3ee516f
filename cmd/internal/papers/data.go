package papers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/decode"
)

// value is a piece of a paper's data. What the embedded data lacks or holds as another type is a defect of
// this program: the methods panic then, and the tests run every item.
type value struct {
	path string
	v    any // map[string]any, []any, string, int64, float64, bool or nil
}

// document is a paper's file.
type document struct {
	ids     []string // of its entries, in their order: "table3", "dc_t3_ratios", "r_memory"
	entries map[string]value
}

var documents = sync.OnceValue(func() map[string]document {
	out := map[string]document{}
	for _, paper := range Papers {
		text, err := data.ReadFile("data/" + paper + ".yaml")
		if err != nil {
			panic("BUG: " + err.Error())
		}
		var file map[string]any
		if err := decode.Bytes(paper+".yaml", text, "", &file); err != nil {
			panic("BUG: " + err.Error())
		}
		out[paper] = newDocument(paper, file)
	}
	return out
})

// newDocument collects the entries of a paper's sections by their ids.
func newDocument(paper string, file map[string]any) document {
	doc := document{entries: map[string]value{}}
	for _, section := range sections {
		list, _ := file[section].([]any)
		for i := range list {
			id := value{fmt.Sprintf("%s.%s.%d", paper, section, i), list[i]}.at("id").text()
			if _, twice := doc.entries[id]; twice {
				panic("BUG: the data of " + paper + " have two entries " + id)
			}
			doc.ids = append(doc.ids, id)
			doc.entries[id] = value{paper + "." + id, list[i]}
		}
	}
	return doc
}

// sections are the lists of a paper's file.
var sections = []string{"hardware", "models", "workloads", "method", "tables", "results", "derived_checks"}

// fact returns an entry of a paper's data by its id; what the paper prints is mostly at its key "values".
func fact(paper, id string) value {
	entry, ok := documents()[paper].entries[id]
	if !ok {
		panic(fmt.Sprintf("BUG: the data of %s have no entry %q", paper, id))
	}
	return entry
}

// at descends by keys of mappings (string) and indices of lists (int).
func (x value) at(keys ...any) value {
	for _, key := range keys {
		found, ok := x.find(key)
		if !ok {
			panic(fmt.Sprintf("BUG: %s has no %v", x.path, key))
		}
		x = found
	}
	return x
}

// find descends by one key or index.
func (x value) find(key any) (value, bool) {
	path := fmt.Sprintf("%s.%v", x.path, key)
	switch key := key.(type) {
	case string:
		mapping, _ := x.v.(map[string]any)
		found, ok := mapping[key]
		return value{path, found}, ok
	case int:
		list, _ := x.v.([]any)
		if key >= 0 && key < len(list) {
			return value{path, list[key]}, true
		}
	}
	return value{}, false
}

// has reports whether a mapping has a key.
func (x value) has(key string) bool {
	_, ok := x.find(key)
	return ok
}

// num returns a number.
func (x value) num() float64 {
	switch v := x.v.(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	}
	panic(fmt.Sprintf("BUG: %s is %v, want a number", x.path, x.v))
}

// text returns a string.
func (x value) text() string {
	text, ok := x.v.(string)
	if !ok {
		panic(fmt.Sprintf("BUG: %s is %v, want text", x.path, x.v))
	}
	return text
}

// list returns a list's values.
func (x value) list() []value {
	list, ok := x.v.([]any)
	if !ok {
		panic(fmt.Sprintf("BUG: %s is %v, want a list", x.path, x.v))
	}
	out := make([]value, len(list))
	for i := range list {
		out[i] = x.at(i)
	}
	return out
}

// nums returns a list of numbers; a lone number is a list of one.
func (x value) nums() []float64 {
	if _, ok := x.v.([]any); !ok {
		return []float64{x.num()}
	}
	var out []float64
	for _, v := range x.list() {
		out = append(out, v.num())
	}
	return out
}

// all returns every number below a value, those of mappings by ascending keys.
func (x value) all() (out []float64) {
	if _, ok := x.v.(map[string]any); !ok {
		return x.nums()
	}
	for _, key := range x.keys() {
		out = append(out, x.at(key).all()...)
	}
	return out
}

// keys returns a mapping's keys, ascending.
func (x value) keys() []string {
	mapping, ok := x.v.(map[string]any)
	if !ok {
		panic(fmt.Sprintf("BUG: %s is %v, want a mapping", x.path, x.v))
	}
	out := make([]string, 0, len(mapping))
	for k := range mapping {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// any returns a number as float64, text, or the value as the data write it.
func (x value) any() any {
	switch v := x.v.(type) {
	case int64:
		return float64(v)
	case float64, string:
		return v
	}
	return fmt.Sprint(x.v)
}

// source returns where the paper prints an entry.
func (x value) source() string { return x.at("source").text() }

// missing lists what a paper shows in plots and pictures and prints no numbers of.
func missing(paper string) Item {
	run := func(context.Context, string) ([]Row, error) {
		var rows []Row
		for _, id := range documents()[paper].ids {
			entry := fact(paper, id)
			if !notPrinted(entry) {
				continue
			}
			row := Row{ID: paper + "/missing/" + id, Paper: "a plot, " + entry.source(), Class: PrintedOnly,
				Note: "its numbers are not printed"}
			if strings.HasPrefix(id, "table") {
				row.Paper = "a picture, " + entry.source()
			}
			if entry.has("note") {
				note, _, _ := strings.Cut(entry.at("note").text(), "; facts in ") // a reference within the data
				row.Note += ": " + note
			}
			rows = append(rows, row)
		}
		return rows, nil
	}
	return Item{Paper: paper, Name: "missing", Title: "what is shown without numbers", Source: "figures", Run: run}
}

// notPrinted reports whether an entry's numbers are in no text.
func notPrinted(entry value) bool {
	values, ok := entry.find("values")
	return ok && values.v == "not_in_text"
}
