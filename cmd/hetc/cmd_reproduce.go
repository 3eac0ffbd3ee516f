package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/papers"
	"github.com/hetc/hetc/internal/diag"
)

func newReproduce(s *cli.Streams) *cobra.Command {
	var list bool
	c := &cobra.Command{
		Use:   "reproduce [PAPER [ITEM]]",
		Short: "recompute what the papers behind hetc print, beside the printed values",
		Long: `Recomputes what can be recomputed of the five papers whose methods hetc implements, from what they print:
all items, those of one paper, or one. Each row has the printed value, ours, and how ours comes about:

  exact             a formula and its inputs are printed
  modelled          through latency models fitted to some printed points
  measured here     the same experiment on this machine's processors
  not reproducible  the note says what is missing

A difference is shown, never tuned away, and is no error. Papers: ` + strings.Join(papers.Papers, ", ") + `. What the
items are: docs/reproduce.md.

` + cli.ExitCodes,
		Args: cobra.MaximumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			items, err := pickItems(args)
			if err != nil {
				return err
			}
			if list {
				return listItems(s, items)
			}
			rows := []papers.Row{}
			for _, it := range items {
				more, err := it.Run(c.Context())
				if err != nil {
					return fmt.Errorf("reproduce %s %s: %w", it.Paper, it.Name, err)
				}
				showRows(s, &it, more)
				rows = append(rows, more...)
			}
			return s.Result(map[string]any{"rows": rows})
		},
	}
	c.Flags().BoolVar(&list, "list", false, "list the items instead of recomputing them")
	return c
}

// pickItems finds the items that a command line names.
func pickItems(args []string) ([]papers.Item, error) {
	items := papers.Items()
	if len(args) == 0 {
		return items, nil
	}
	unknown := func(what, word string, candidates []string) error {
		return diag.New(diag.ClassUsage, "reproduce: no %s is called %q", what, word).WithHint("%s", diag.DidYouMean(word, candidates))
	}
	if !slices.Contains(papers.Papers, args[0]) {
		return nil, unknown("paper", args[0], papers.Papers)
	}
	items = slices.DeleteFunc(items, func(it papers.Item) bool { return it.Paper != args[0] })
	if len(args) == 1 {
		return items, nil
	}
	var names []string
	for _, it := range items {
		if it.Name == args[1] {
			return []papers.Item{it}, nil
		}
		names = append(names, it.Name)
	}
	return nil, unknown("item of "+args[0], args[1], names)
}

func listItems(s *cli.Streams, items []papers.Item) error {
	var table [][]string
	var docs []map[string]string
	for _, it := range items {
		table = append(table, []string{it.Paper, it.Name, it.Title, it.Source})
		docs = append(docs, map[string]string{"paper": it.Paper, "item": it.Name, "title": it.Title, "source": it.Source})
	}
	s.Table([]string{"paper", "item", "what", "where"}, table)
	return s.Result(map[string]any{"items": docs})
}

// showRows prints an item's rows as a table. Notes are long and often shared by rows: they stand below, by number.
func showRows(s *cli.Streams, it *papers.Item, rows []papers.Row) {
	s.Printf("%s %s: %s (%s)\n", it.Paper, it.Name, it.Title, it.Source)
	var table [][]string
	var notes []string
	for _, r := range rows {
		mark := ""
		if r.Note != "" {
			k := slices.Index(notes, r.Note)
			if k < 0 {
				k = len(notes)
				notes = append(notes, r.Note)
			}
			mark = fmt.Sprintf("[%d]", k+1)
		}
		table = append(table, []string{strings.TrimPrefix(r.ID, it.Paper+"/"+it.Name+"/"), shown(r.Paper), shown(r.Ours), difference(r), string(r.Class), mark})
	}
	s.Table([]string{"row", ">paper", ">ours", ">difference", "class", "note"}, table)
	for i, n := range notes {
		s.Printf("[%d] %s\n", i+1, n)
	}
	s.Printf("\n")
}

// shown is a row's value, numbers with four digits or all before the point.
func shown(v any) string {
	switch v := v.(type) {
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
	return fmt.Sprint(v)
}

// difference compares the two values of a row.
func difference(r papers.Row) string {
	a, isA := r.Paper.(float64)
	b, isB := r.Ours.(float64)
	switch {
	case r.Ours == nil:
		return ""
	case isA && isB && a == b:
		return "none"
	case isA && isB && a == 0:
		return shown(b - a)
	case isA && isB:
		return fmt.Sprintf("%+.1f %%", 100*(b-a)/math.Abs(a))
	case isA != isB, r.Paper == nil:
		return ""
	case r.Paper == r.Ours:
		return "none"
	}
	return "differs"
}
