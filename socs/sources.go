package socs

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/decode"
)

// Sourced is one number of a SoC with where it comes from.
type Sourced struct {
	Path  string // "processors.npu.launch_us"
	Value string
	Kind  string // one of SourceKinds, "" when the file does not say
	Text  string // what follows the kind
}

// Numbers lists every number and limit of the SoC with its source, ascending by path.
func (s *SoC) Numbers() []Sourced {
	values := valuePaths(s)
	var out []Sourced
	for _, path := range slices.Sorted(maps.Keys(values)) {
		leaf := values[path]
		if !leaf.number {
			continue
		}
		entry := Sourced{Path: path, Value: leaf.text}
		text, _ := source(s.Sources, path)
		entry.Kind, entry.Text, _ = strings.Cut(text, ": ")
		out = append(out, entry)
	}
	// points and facts state their sources themselves
	for i, point := range s.Points {
		entry := Sourced{Path: fmt.Sprintf("points.%d.latency_us", i), Value: fmt.Sprint(point.LatencyUS)}
		entry.Kind, entry.Text, _ = strings.Cut(point.Source, ": ")
		out = append(out, entry)
	}
	for _, fact := range s.Facts {
		entry := Sourced{Path: "facts." + fact.Name, Value: fmt.Sprint(fact.Value)}
		entry.Kind, entry.Text, _ = strings.Cut(fact.Source, ": ")
		out = append(out, entry)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}

// Assumptions lists the numbers that are neither printed nor measured anywhere: those whose source says "assumed"
// and those without one.
func (s *SoC) Assumptions() []Sourced {
	var out []Sourced
	for _, entry := range s.Numbers() {
		if entry.Kind == "assumed" || entry.Kind == "" {
			out = append(out, entry)
		}
	}
	return out
}

// source returns the entry that covers path: its own, else that of the nearest path above it.
func source(sources map[string]string, path string) (string, bool) {
	for at := path; ; {
		if text, ok := sources[at]; ok {
			return text, true
		}
		i := strings.LastIndexByte(at, '.')
		if i < 0 {
			return "", false
		}
		at = at[:i]
	}
}

// leaf is a value of the file, and whether it is a number, which needs a source.
type leaf struct {
	text   string
	number bool
}

// valuePaths returns the data path of every value; see leaves.
func valuePaths(s *SoC) map[string]leaf {
	bare := *s
	bare.Sources, bare.Points, bare.Facts = nil, nil, nil
	text, err := decode.YAML(&bare)
	if err != nil {
		return nil // not finite: reported where the number is
	}
	var m map[string]any
	if err := decode.Bytes(s.Name, text, "", &m); err != nil {
		return nil
	}
	return leaves(m)
}

// leaves returns the data path of every value of a decoded SoC; elements of lists are named by their
// identity. What states its own source is left out, and so are the sources.
func leaves(soc map[string]any) map[string]leaf {
	out := map[string]leaf{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch value := v.(type) {
		case map[string]any:
			for key, elem := range value {
				walk(path+"."+key, elem)
			}
		case []any: // elements are named by identity or position; plain values are one text
			plain := []string{}
			for i, elem := range value {
				if id := identity(elem); id != "" {
					walk(path+"."+id, elem)
				} else if _, ok := elem.(map[string]any); ok {
					walk(fmt.Sprintf("%s.%d", path, i), elem)
				} else {
					plain = append(plain, fmt.Sprint(elem))
				}
			}
			if len(plain) > 0 {
				out[path] = leaf{text: strings.Join(plain, ", ")}
			}
		case int64, float64:
			out[path] = leaf{text: fmt.Sprint(value), number: true}
		case nil:
		default:
			out[path] = leaf{text: fmt.Sprint(value)}
		}
	}
	for key, elem := range soc {
		if key != "sources" && key != "points" && key != "facts" {
			walk(key, elem)
		}
	}
	return out
}

// covers reports whether one of the sorted paths is path or lies below it.
func covers(paths []string, path string) bool {
	at := func(p string) int { return sort.SearchStrings(paths, p) }
	if i := at(path); i < len(paths) && paths[i] == path {
		return true
	}
	i := at(path + ".")
	return i < len(paths) && strings.HasPrefix(paths[i], path+".")
}
