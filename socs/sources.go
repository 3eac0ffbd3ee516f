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
		for at := path; ; {
			if src, ok := s.Sources[at]; ok {
				x.Kind, x.Text, _ = strings.Cut(src, ": ")
				break
			}
			i := strings.LastIndexByte(at, '.')
			if i < 0 {
				break
			}
			at = at[:i]
		}
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

type leaf struct {
	text   string
	number bool
}

// valuePaths returns the data path of every value; elements of lists are named by their identity.
// What states its own source is left out.
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
	out := map[string]leaf{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch x := v.(type) {
		case map[string]any:
			for k, e := range x {
				if path == "" {
					walk(k, e)
				} else {
					walk(path+"."+k, e)
				}
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
	walk("", m)
	return out
}

// covers reports whether some value lies at path or below it.
func covers(values map[string]leaf, path string) bool {
	if _, ok := values[path]; ok {
		return true
	}
	keys := sortedKeys(values)
	i := sort.SearchStrings(keys, path+".")
	return i < len(keys) && strings.HasPrefix(keys[i], path+".")
}
