// Package docs knows whether the documents say what the tree holds.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testName is a test as the documents write it: `runtime/executor.TestArchitectures`.
var testName = regexp.MustCompile("`([a-z0-9_/]+)\\.(Test[A-Za-z0-9_]+)`")

// statuses are the words of the second column of papers.md, in the order of the columns of its summary.
var statuses = []string{"executed", "in part", "planned", "simulated", "missing"}

// row returns the cells of a line of a table, nil for other lines and for the line below the titles.
func row(line string) []string {
	if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") {
		return nil
	}
	cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// TestPapers keeps papers.md from claiming more than tests show: each mechanism has a status, those that are not missing
// name tests that exist, those that execute name a test outside the recomputation of papers, and the summary counts them.
func TestPapers(t *testing.T) {
	text, err := os.ReadFile("papers.md")
	if err != nil {
		t.Fatal(err)
	}
	paper, counts, summary := "", map[string]map[string]int{}, map[string][]string{}
	for i, line := range strings.Split(string(text), "\n") {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			paper, counts[name] = name, map[string]int{}
			continue
		}
		cells := row(line)
		if paper == "" && len(cells) == 1+len(statuses) {
			summary[cells[0]] = cells[1:]
		}
		if paper == "" || cells == nil || cells[0] == "mechanism" {
			continue
		}
		at := fmt.Sprintf("papers.md:%d", i+1)
		if len(cells) != 4 || !slices.Contains(statuses, cells[1]) {
			t.Errorf("%s: want mechanism, one of %q, what hetc does, tests", at, statuses)
			continue
		}
		counts[paper][cells[1]]++
		tests, outside := testName.FindAllStringSubmatch(cells[3], -1), 0
		for _, name := range tests {
			if !exists(t, name[1], name[2]) {
				t.Errorf("%s: there is no test %s.%s", at, name[1], name[2])
			}
			if name[1] != "cmd/internal/papers" {
				outside++
			}
		}
		if left := testName.ReplaceAllString(cells[3], ""); strings.Trim(left, ", ") != "" {
			t.Errorf("%s: %q is no test", at, left)
		}
		if (len(tests) == 0) != (cells[1] == "missing") {
			t.Errorf("%s: %d tests for what is %s", at, len(tests), cells[1])
		}
		if outside == 0 && cells[1] != "simulated" && cells[1] != "missing" {
			t.Errorf("%s: what is %s is shown by no test outside cmd/internal/papers", at, cells[1])
		}
	}
	if len(counts) != 5 {
		t.Errorf("%d papers, want 5", len(counts))
	}
	for name, count := range counts {
		var want []string
		for _, status := range statuses {
			want = append(want, fmt.Sprint(count[status]))
		}
		if !slices.Equal(summary[name], want) {
			t.Errorf("summary of %s: got %q, and its table has %q", name, summary[name], want)
		}
	}
}

// exists reports whether a package, by its path in the module, has a test function of that name.
func exists(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				return true
			}
		}
	}
	return false
}
