package socs

import (
	"fmt"
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
	for _, path := range sortedKeys(values) {
		v := values[path]
		if !v.number {
			continue
		}
		x := Sourced{Path: path, Value: v.text}
		text, _ := source(s.Sources, path)
		x.Kind, x.Text, _ = strings.Cut(text, ": ")
		out = append(out, x)
	}
	for i, p := range s.Points {
		x := Sourced{Path: fmt.Sprintf("points.%d.latency_us", i), Value: fmt.Sprint(p.LatencyUS)}
		x.Kind, x.Text, _ = strings.Cut(p.Source, ": ")
		out = append(out, x)
	}
	for _, f := range s.Facts {
		x := Sourced{Path: "facts." + f.Name, Value: fmt.Sprint(f.Value)}
		x.Kind, x.Text, _ = strings.Cut(f.Source, ": ")
		out = append(out, x)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}

// Assumptions lists the numbers that nobody printed or measured: those whose source says "assumed"
// and those without one.
func (s *SoC) Assumptions() []Sourced {
	var out []Sourced
	for _, x := range s.Numbers() {
		if x.Kind == "assumed" || x.Kind == "" {
			out = append(out, x)
		}
	}
	return out
}

// source is the entry that covers path: its own, else that of the nearest path above it.
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
		switch x := v.(type) {
		case map[string]any:
			for k, e := range x {
				walk(path+"."+k, e)
			}
		case []any:
			plain := []string{}
			for i, e := range x {
				if id := identity(e); id != "" {
					walk(path+"."+id, e)
				} else if _, ok := e.(map[string]any); ok {
					walk(fmt.Sprintf("%s.%d", path, i), e)
				} else {
					plain = append(plain, fmt.Sprint(e))
				}
			}
			if len(plain) > 0 {
				out[path] = leaf{text: strings.Join(plain, ", ")}
			}
		case int64, float64:
			out[path] = leaf{text: fmt.Sprint(x), number: true}
		case nil:
		default:
			out[path] = leaf{text: fmt.Sprint(x)}
		}
	}
	for k, e := range soc {
		if k != "sources" && k != "points" && k != "facts" {
			walk(k, e)
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
