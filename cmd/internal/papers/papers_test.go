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

// ran are the rows of items that ran already.
var ran = map[string][]Row{}

// rowsOf runs an item once per test binary.
func rowsOf(t *testing.T, item *Item) []Row {
	t.Helper()
	name := item.Paper + "/" + item.Name
	if rows, ok := ran[name]; ok {
		return rows
	}
	rows, err := item.Run(t.Context(), "../../../testdata/models")
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(rows) == 0 {
		t.Errorf("%s: no rows", name)
	}
	for _, row := range rows {
		if !strings.HasPrefix(row.ID, name+"/") {
			t.Errorf("%s: row %q belongs elsewhere", name, row.ID)
		}
	}
	ran[name] = rows
	return rows
}

// of lists the items of a paper.
func of(paper string) (items []*Item) {
	all := Items()
	for i := range all {
		if all[i].Paper == paper {
			items = append(items, &all[i])
		}
	}
	return items
}

// Every row stands in a golden file, as hetc reproduce --json prints it. What is solved or executed stands there with
// two digits: it moves as hetc gets better.
func TestRows(t *testing.T) {
	require.Slow(t)
	for _, paper := range Papers {
		t.Run(paper, func(t *testing.T) {
			var rows []Row
			for _, item := range of(paper) {
				rows = append(rows, rowsOf(t, item)...)
			}
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
				case Arithmetic, Solved, Executed:
					if r.Ours == nil {
						t.Errorf("%s: class %q without a value", r.ID, r.Class)
					}
				case PrintedOnly:
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
			for i := range rows {
				if ours, ok := rows[i].Ours.(float64); ok && (rows[i].Class == Solved || rows[i].Class == Executed) {
					rows[i].Ours = rounded(ours, 2)
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

// What rounds to nothing has no sign: "-0.0 %" says less than it seems to.
func TestDifference(t *testing.T) {
	for _, c := range []struct {
		paper, ours any
		want        string
	}{
		{5.4, 5.398, "0.0 %"}, {4.48, 4.482, "0.0 %"}, {2.21, 2.014, "-8.9 %"}, {1.09, 1.366, "+25.3 %"},
		{2.0, 2.0, "none"}, {0.0, 0.125, "0.125"}, {nil, 1.0, ""}, {"npu", "gpu", "differs"},
	} {
		if got := difference(Row{Paper: c.paper, Ours: c.ours}); got != c.want {
			t.Errorf("%v and %v: got %q, want %q", c.paper, c.ours, got, c.want)
		}
	}
}
