package papers

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

// PickItems finds the items that a command line names.
func PickItems(args []string) ([]Item, error) {
	items := Items()
	if len(args) == 0 {
		return items, nil
	}
	unknown := func(what, word string, candidates []string) error {
		return diag.New(diag.ClassUsage, "reproduce: no %s is called %q", what, word).
			WithHint("%s", diag.DidYouMean(word, candidates))
	}
	if !slices.Contains(Papers, args[0]) {
		return nil, unknown("paper", args[0], Papers)
	}
	items = slices.DeleteFunc(items, func(it Item) bool { return it.Paper != args[0] })
	if len(args) == 1 {
		return items, nil
	}
	var names []string
	for _, it := range items {
		if it.Name == args[1] {
			return []Item{it}, nil
		}
		names = append(names, it.Name)
	}
	return nil, unknown("item of "+args[0], args[1], names)
}

// ListItems shows what there is to recompute.
func ListItems(ui *cli.Streams, items []Item) error {
	var table [][]string
	var docs []map[string]string
	for _, it := range items {
		table = append(table, []string{it.Paper, it.Name, it.Title, it.Source})
		docs = append(docs, map[string]string{"paper": it.Paper, "item": it.Name, "title": it.Title,
			"source": it.Source})
	}
	ui.Table([]string{"paper", "item", "what", "where"}, table)
	return ui.Result(map[string]any{"items": docs})
}

// ShowRows prints an item's rows as a table. Notes are long and often shared by rows: they stand below, by number.
func ShowRows(ui *cli.Streams, it *Item, rows []Row) {
	ui.Printf("%s %s: %s (%s)\n", it.Paper, it.Name, it.Title, it.Source)
	var table [][]string
	var notes []string
	for _, row := range rows {
		mark := ""
		if row.Note != "" {
			at := slices.Index(notes, row.Note)
			if at < 0 {
				at = len(notes)
				notes = append(notes, row.Note)
			}
			mark = fmt.Sprintf("[%d]", at+1)
		}
		table = append(table, []string{strings.TrimPrefix(row.ID, it.Paper+"/"+it.Name+"/"), cellText(row.Paper),
			cellText(row.Ours), difference(row), string(row.Class), mark})
	}
	ui.Table([]string{"row", ">paper", ">ours", ">difference", "class", "note"}, table)
	for i, n := range notes {
		ui.Printf("[%d] %s\n", i+1, n)
	}
	ui.Printf("\n")
}

// cellText returns a row's value, numbers with four digits or all before the point.
func cellText(value any) string {
	switch v := value.(type) {
	case nil:
		return "-"
	case float64:
		if v == 0 {
			return "0" // not -0
		}
		if v == math.Trunc(v) || math.Abs(v) >= 1000 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return fmt.Sprint(value)
}

// difference compares the two values of a row.
func difference(row Row) string {
	paper, isA := row.Paper.(float64)
	ours, isB := row.Ours.(float64)
	switch {
	case row.Ours == nil:
		return ""
	case isA && isB && paper == ours:
		return "none"
	case isA && isB && paper == 0:
		return cellText(ours - paper)
	case isA && isB:
		percent := 100 * (ours - paper) / math.Abs(paper)
		if math.Abs(percent) < 0.05 {
			return "0.0 %" // rounded, without a sign
		}
		return fmt.Sprintf("%+.1f %%", percent)
	case isA != isB, row.Paper == nil:
		return ""
	case row.Paper == row.Ours:
		return "none"
	}
	return "differs"
}
