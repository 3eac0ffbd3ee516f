package papers

import (
	"context"
	"embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/decode"
)

// sheet collects the rows of one item.
type sheet struct {
	id     string // "npumoe/tiers/"
	models string // folder of trained models; empty: none
	rows   []Row
}

// sheetItem returns an item whose rows fill writes, in their order.
func sheetItem(paper, name, title, source string, fill func(context.Context, *sheet) error) Item {
	return Item{Paper: paper, Name: name, Title: title, Source: source,
		Run: func(ctx context.Context, models string) ([]Row, error) {
			rows := sheet{id: paper + "/" + name + "/", models: models}
			if err := fill(ctx, &rows); err != nil {
				return nil, fmt.Errorf("recompute %q: %w", paper+"/"+name, err)
			}
			return rows.rows, nil
		}}
}

// add appends a row. Numbers may be of type int; they are rounded to six significant digits.
func (s *sheet) add(class Class, name string, paper, ours any, note string, args ...any) {
	s.rows = append(s.rows, Row{ID: s.id + name, Paper: shown(paper), Ours: shown(ours), Class: class,
		Note: fmt.Sprintf(note, args...)})
}

// model returns the folder of a trained model that rows are executed with. Without one a row says so.
func (s *sheet) model(name string) (dir string, ok bool) {
	dir = filepath.Join(s.models, name)
	if _, err := os.Stat(dir); s.models == "" || err != nil {
		s.add(PrintedOnly, name, nil, nil, "executed with %s, where --models names a folder that has it", name)
		return "", false
	}
	return dir, true
}

// sort puts the rows so far in the order of their names.
func (s *sheet) sort() {
	slices.SortFunc(s.rows, func(a, b Row) int { return strings.Compare(a.ID, b.ID) })
}

// noted is add with a longer note, which stands in notes/PAPER.yaml under a key.
func (s *sheet) noted(class Class, name string, paper, ours any, key string, args ...any) {
	id, _, _ := strings.Cut(s.id, "/")
	note, ok := notes()[id][key]
	if !ok {
		panic(fmt.Sprintf("BUG: the notes of %s have no entry %q", id, key))
	}
	s.add(class, name, paper, ours, "%s", fmt.Sprintf(note, args...))
}

// noteFiles are what rows say beside their numbers.
//
//go:embed notes/*.yaml
var noteFiles embed.FS

// notes are the longer notes of rows by paper and key.
var notes = sync.OnceValue(func() map[string]map[string]string {
	out := map[string]map[string]string{}
	for _, paper := range Papers {
		text, err := noteFiles.ReadFile("notes/" + paper + ".yaml")
		if err != nil {
			panic("BUG: " + err.Error())
		}
		byKey := map[string]string{}
		if err := decode.Bytes(paper+".yaml", text, "", &byKey); err != nil {
			panic("BUG: " + err.Error())
		}
		out[paper] = byKey
	}
	return out
})

// shown returns a value as rows hold it: numbers as float64 of six digits.
func shown(v any) any {
	switch x := v.(type) {
	case int:
		return float64(x)
	case float64:
		return rounded(x, 6) // the last bits of a sum differ between machines
	}
	return v
}

// rounded keeps some significant digits.
func rounded(x float64, digits int) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	scale := math.Pow(10, float64(digits-1)-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}
