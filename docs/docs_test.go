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
			if !declares(t, name[1], name[2]) {
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

// documents lists the Markdown files of the tree by their paths from here.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"../*.md", "*.md", "cli/*.md", "../planir/*.md", "../planir/bundle/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, files...)
	}
	if len(found) < 20 {
		t.Fatalf("%d documents found, want at least 20", len(found))
	}
	return found
}

// notInAnchors is what GitHub leaves out of a heading where it makes an anchor of it.
var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// headings returns the headings of a document by their anchors.
func headings(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found, code := map[string]string{}, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		title := strings.TrimLeft(line, "#")
		if code || title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		title = strings.TrimSpace(title)
		found[strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(title), ""), " ", "-")] = title
	}
	return found
}

var (
	link     = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	codeSpan = regexp.MustCompile("`[^`\n]*`")
)

// TestLinks follows every link of every document that leads into the tree, to the heading that it names.
func TestLinks(t *testing.T) {
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(string(text), ""), -1) {
			to, anchor := found[1], found[2]
			if strings.Contains(to, "://") {
				continue
			}
			target := path
			if to != "" {
				target = filepath.Join(filepath.Dir(path), filepath.FromSlash(to))
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %s: %v", path, to, err)
				continue
			}
			if anchor != "" && headings(t, target)[anchor] == "" {
				t.Errorf("%s: link to %s#%s: there is no such heading", path, to, anchor)
			}
		}
	}
}

// TestIndex keeps the list of documents complete.
func TestIndex(t *testing.T) {
	index, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("*.md")
	if err != nil || len(pages) < 10 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		if page != "README.md" && !strings.Contains(string(index), "]("+page+")") {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}

// TestRationale keeps the index of RATIONALE.md complete and in order, and finds the questions that code cites.
func TestRationale(t *testing.T) {
	text, err := os.ReadFile("../RATIONALE.md")
	if err != nil {
		t.Fatal(err)
	}
	var index, questions []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if question, ok := strings.CutPrefix(line, "### "); ok {
			questions = append(questions, question)
		} else if item, ok := strings.CutPrefix(line, "- ["); ok && len(questions) == 0 {
			question, _, _ := strings.Cut(item, "](#")
			index = append(index, question)
		}
	}
	if !slices.Equal(index, questions) {
		t.Errorf("the index has %d questions, and the text %d, or others", len(index), len(questions))
	}
	cited := 0
	err = filepath.WalkDir("..", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "testdata" || len(name) > 2 && name[0] == '.') {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		code, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(code)) {
			question, ok := strings.CutPrefix(strings.TrimSpace(line), "// RATIONALE: ")
			if !ok {
				continue
			}
			cited++
			if !slices.Contains(questions, question) {
				t.Errorf("%s cites %q, which RATIONALE.md does not ask", path, question)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if cited < 10 {
		t.Errorf("%d citations in code, want at least 10", cited)
	}
}

var (
	// symbol is a function, method or type as the documents write it: `planir/bundle.Open`.
	symbol = regexp.MustCompile(`^([a-z][a-z0-9_/]*)\.((?:[A-Z]\w*\.)?[A-Z]\w*)$`)
	// treePath is a file or folder of the tree.
	treePath = regexp.MustCompile(`^[a-z.][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)+$|^(?:planir|models|socs|profiler|roofline|solver|emit|plans|testdata|docs)$`)
)

// TestArchitecture finds every path and every name of code on the pages for those who change hetc.
func TestArchitecture(t *testing.T) {
	found := 0
	for _, page := range []string{"architecture.md", "../CONTRIBUTING.md", "../SECURITY.md", "../README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range codeSpan.FindAllString(string(text), -1) {
			span = strings.Trim(span, "`")
			if name := symbol.FindStringSubmatch(span); name != nil {
				found++
				if !declares(t, name[1], name[2]) {
					t.Errorf("%s: %s declares no %s", page, name[1], name[2])
				}
			} else if treePath.MatchString(span) && !strings.Contains(span, "NAME") {
				found++
				if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(span))); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("%d paths and names found, want at least 100", found)
	}
}

// declares reports whether a package declares a function, or a method written "Type.Method".
func declares(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	receiver, method, isMethod := strings.Cut(name, ".")
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || (f.Recv != nil) != isMethod {
				continue
			}
			if !isMethod && f.Name.Name == name {
				return true
			}
			if !isMethod || f.Name.Name != method {
				continue
			}
			of := f.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if ident, ok := of.(*ast.Ident); ok && ident.Name == receiver {
				return true
			}
		}
	}
	return false
}
