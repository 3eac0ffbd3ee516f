package papers

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/internal/require"
)

func TestMain(m *testing.M) { os.Exit(golden.Main(m)) }

// rowsOf runs the items of a paper once per test binary.
var ran = map[string][]Row{}

func rowsOf(t *testing.T, paper string) []Row {
	t.Helper()
	if rows, ok := ran[paper]; ok {
		return rows
	}
	var rows []Row
	for _, it := range Items() {
		if it.Paper != paper {
			continue
		}
		more, err := it.Run(t.Context())
		if err != nil {
			t.Fatalf("%s/%s: %v", paper, it.Name, err)
		}
		if len(more) == 0 {
			t.Errorf("%s/%s: no rows", paper, it.Name)
		}
		for _, r := range more {
			if !strings.HasPrefix(r.ID, paper+"/"+it.Name+"/") {
				t.Errorf("%s/%s: row %q belongs elsewhere", paper, it.Name, r.ID)
			}
		}
		rows = append(rows, more...)
	}
	ran[paper] = rows
	return rows
}

// Every number stands in a golden file, as hetc reproduce --json prints it: the same comes out each time.
func TestRows(t *testing.T) {
	require.Slow(t)
	for _, paper := range Papers {
		t.Run(paper, func(t *testing.T) {
			rows := rowsOf(t, paper)
			seen := map[string]bool{}
			for _, r := range rows {
				if seen[r.ID] {
					t.Errorf("row %q appears twice", r.ID)
				}
				seen[r.ID] = true
				if strings.Contains(r.Note, "%!") { // a format that its values do not fit
					t.Errorf("%s: note %q", r.ID, r.Note)
				}
				switch r.Class {
				case Exact, Modelled, Measured:
					if r.Ours == nil {
						t.Errorf("%s: class %q without a value", r.ID, r.Class)
					}
				case NotReproducible:
					if r.Note == "" {
						t.Errorf("%s: does not say what is missing", r.ID)
					}
				default:
					t.Errorf("%s: class %q", r.ID, r.Class)
				}
				for _, v := range []any{r.Paper, r.Ours} {
					switch x := v.(type) {
					case nil, string, bool:
					case float64:
						if math.IsNaN(x) || math.IsInf(x, 0) {
							t.Errorf("%s: %v", r.ID, x)
						}
					default:
						t.Errorf("%s: value of type %T, want float64 or string", r.ID, v)
					}
				}
			}
			var b bytes.Buffer
			enc := json.NewEncoder(&b)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			if err := enc.Encode(map[string]any{"rows": rows}); err != nil {
				t.Fatal(err)
			}
			golden.Equal(t, "json", b.Bytes())
		})
	}
}

func TestItems(t *testing.T) {
	seen := map[string]bool{}
	for _, it := range Items() {
		name := it.Paper + "/" + it.Name
		if seen[name] || !slices.Contains(Papers, it.Paper) || it.Name == "" || it.Title == "" || it.Source == "" ||
			it.Run == nil {
			t.Errorf("item %q is not unique or incomplete", name)
		}
		seen[name] = true
	}
}

// Each derived check of the data is answered by an item.
func TestEveryDerivedCheckIsAnswered(t *testing.T) {
	for _, paper := range Papers {
		known, answered := map[string]bool{}, map[string]bool{}
		for _, id := range documents()[paper].ids {
			known[id] = strings.HasPrefix(id, "dc_")
		}
		for _, it := range Items() {
			if it.Paper != paper {
				continue
			}
			for _, id := range it.Checks {
				if !known[id] {
					t.Errorf("%s/%s answers %q, which is no derived check of the data", paper, it.Name, id)
				}
				answered[id] = true
			}
		}
		for _, id := range documents()[paper].ids {
			if known[id] && !answered[id] {
				t.Errorf("%s: derived check %q is answered by no item", paper, id)
			}
		}
	}
}

// Every note is used by a row.
func TestNotesAreUsed(t *testing.T) {
	var code strings.Builder
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	for paper, byKey := range notes() {
		for key := range byKey {
			if !strings.Contains(code.String(), strconv.Quote(key)) {
				t.Errorf("notes/%s.yaml: no row has the note %q", paper, key)
			}
		}
	}
}
