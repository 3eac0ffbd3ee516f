// Command lint is a tool of go vet with the rules that the compiler and go vet do not have:
//
//	go vet -vettool=bin/lint ./...
//
// suite is the list of them, and exempt what they may not complain about. There is no other list.
package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"sync"

	"github.com/charithe/durationcheck"
	gocritic "github.com/go-critic/go-critic/checkers/analyzer"
	"github.com/golangci/misspell"
	"github.com/golangci/unconvert"
	"github.com/kisielk/errcheck/errcheck"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"github.com/sanposhiho/wastedassign/v2"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/atomicalign"
	"golang.org/x/tools/go/analysis/passes/modernize"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/reflectvaluecompare"
	"golang.org/x/tools/go/analysis/passes/sortslice"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/analysis/unitchecker"
	"golang.org/x/tools/go/ast/astutil"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

// suite is what is looked for, beside everything of go vet, staticcheck and modernize.
var suite = []*analysis.Analyzer{
	// Passes of go vet that it leaves out by default.
	atomicalign.Analyzer,
	nilness.Analyzer,
	reflectvaluecompare.Analyzer,
	sortslice.Analyzer,
	unusedwrite.Analyzer,

	durationcheck.Analyzer, // time.Second * time.Second
	errors,                 // comparisons that wrapped errors would escape
	gocritic.Analyzer,      // its diagnostics
	wastedassign.Analyzer,  // a value that is replaced before it is read
	unchecked,
	unnecessary,
	misspelt,
	unusedCode,
}

// without are rules that are wrong for this tree, each with its reason.
var without = []string{
	"ST1000",         // internal/depcheck looks at the sentence of a package
	"ST1003",         // names have the spelling of the formats they stand for
	"stringsbuilder", // texts of a few parts are added up
}

// settings are flags of analyzers.
var settings = []struct {
	analyzer    *analysis.Analyzer
	flag, value string
}{
	{gocritic.Analyzer, "enable", "#diagnostic"},
	// Experimental rules found nothing but what was meant. Keys of maps with blanks are what tests try.
	{gocritic.Analyzer, "disable", "#experimental,#opinionated,#performance,mapKey"},
	{errors, "asserts", "false"}, // lists of diagnostics are switched on as they are: errors.As finds their first element
}

// exemptWords are spellings of names in formats and libraries that texts refer to, and terms of the field.
var exemptWords = []string{
	"artifact", "artifacts", "behavior", "behaviors", "capitalize", "catalogs", "center", "color", "normalize",
	"normalized", "program", "programs",
}

func main() {
	all := slices.Concat(suite, vet.Suite, modernize.Suite)
	for _, list := range [][]*lint.Analyzer{staticcheck.Analyzers, simple.Analyzers, stylecheck.Analyzers} {
		for _, one := range list {
			all = append(all, one.Analyzer)
		}
	}
	all = slices.DeleteFunc(all, func(a *analysis.Analyzer) bool { return slices.Contains(without, a.Name) })
	for _, set := range settings {
		if err := set.analyzer.Flags.Set(set.flag, set.value); err != nil {
			panic(err)
		}
	}
	unitchecker.Main(all...)
}

// errors finds comparisons of errors that wrapping would defeat. Exempt are tests: they ask for one error and no other.
var errors = func() *analysis.Analyzer {
	analyzer := errorlint.NewAnalyzer()
	run := analyzer.Run
	analyzer.Run = func(pass *analysis.Pass) (any, error) {
		outside := *pass
		outside.Report = func(found analysis.Diagnostic) {
			if !inTest(pass.Fset.Position(found.Pos)) {
				pass.Report(found)
			}
		}
		return run(&outside)
	}
	return analyzer
}()

func inTest(place token.Position) bool { return strings.HasSuffix(place.Filename, "_test.go") }

// unchecked finds errors that nobody looks at. Exempt are tests; what cleans up (what writes a file closes it with a check); what prints for people; and calls whose result is a concrete type that happens to be an
// error, such as a diagnostic to which they add a hint.
var unchecked = &analysis.Analyzer{
	Name:     "unchecked",
	Doc:      "find errors that are not checked",
	Requires: []*analysis.Analyzer{errcheck.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, found := range pass.ResultOf[errcheck.Analyzer].(errcheck.Result).UncheckedErrors {
			if inTest(found.Pos) {
				continue
			}
			file, pos := locate(pass, found.Pos)
			path, _ := astutil.PathEnclosingInterval(file, pos, pos)
			call, ok := path[0].(*ast.CallExpr)
			if ok && returnsError(pass.TypesInfo, call) {
				pass.Reportf(pos, "error of %s is not checked", types.ExprString(call.Fun))
			}
		}
		return nil, nil
	},
}

var exemptCalls = []string{"Abandon", "Close", "close", "Remove", "RemoveAll", "Fprint", "Fprintf", "Fprintln"}

func returnsError(info *types.Info, call *ast.CallExpr) bool {
	name := types.ExprString(call.Fun)
	if slices.Contains(exemptCalls, name[strings.LastIndex(name, ".")+1:]) {
		return false
	}
	last := info.TypeOf(call)
	if results, ok := last.(*types.Tuple); ok {
		last = results.At(results.Len() - 1).Type()
	}
	return types.Identical(last, types.Universe.Lookup("error").Type())
}

// unnecessary finds conversions to the type that a value has. Exempt are files for several systems, whose types differ.
var unnecessary = &analysis.Analyzer{
	Name: "unnecessary",
	Doc:  "find conversions that do nothing",
	Run: func(pass *analysis.Pass) (any, error) {
		for _, found := range unconvert.Run(pass) {
			if _, pos := locate(pass, found); !strings.HasSuffix(found.Filename, "_unix.go") {
				pass.Reportf(pos, "conversion does nothing")
			}
		}
		return nil, nil
	},
}

// unusedCode finds what no code and no test of the package uses.
var unusedCode = &analysis.Analyzer{
	Name:     "unused",
	Doc:      "find code that nothing uses",
	Requires: []*analysis.Analyzer{unused.Analyzer.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, found := range pass.ResultOf[unused.Analyzer.Analyzer].(unused.Result).Unused {
			_, pos := locate(pass, found.Position)
			pass.Reportf(pos, "%s %s is not used", found.Kind, found.Name)
		}
		return nil, nil
	},
}

// misspelt finds mistakes in words, and spellings that are not British.
var misspelt = &analysis.Analyzer{
	Name: "misspelt",
	Doc:  "find words with mistakes",
	Run: func(pass *analysis.Pass) (any, error) {
		words := spelling()
		for _, file := range pass.Files {
			name := pass.Fset.Position(file.FileStart).Filename
			text, err := pass.ReadFile(name)
			if err != nil {
				return nil, err
			}
			_, mistakes := words.ReplaceGo(string(text))
			for _, found := range mistakes {
				line := pass.Fset.File(file.FileStart).LineStart(found.Line)
				pass.Reportf(line+token.Pos(found.Column), "%q, want %q", found.Original, found.Corrected)
			}
		}
		return nil, nil
	},
}

var spelling = sync.OnceValue(func() *misspell.Replacer {
	words := misspell.New()
	words.AddRuleList(misspell.DictBritish)
	words.RemoveRule(exemptWords)
	words.Compile()
	return words
})

// locate returns the file and the place in it of what an analyzer found.
func locate(pass *analysis.Pass, found token.Position) (*ast.File, token.Pos) {
	for _, file := range pass.Files {
		if in := pass.Fset.File(file.FileStart); in.Name() == found.Filename {
			return file, in.LineStart(found.Line) + token.Pos(found.Column-1)
		}
	}
	panic("no file " + found.Filename)
}
