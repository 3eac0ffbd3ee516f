// Command types checks the types of packages, of their tests and of everything that they import for other systems, from
// source:
//
//	go run ./.ci/types darwin/arm64 windows/amd64 -- ./...
//
// It finds what compiling would find in Go code, in seconds where compiling the standard library takes minutes. It does
// not assemble or link: assembly differs between processors only, and those are compiled elsewhere.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string // of paths in the source to packages that the standard library brings along
	Module          *struct{ Main bool }
}

func main() {
	split := slices.Index(os.Args, "--")
	if split < 2 || split == len(os.Args)-1 {
		fmt.Fprintln(os.Stderr, "usage: types SYSTEM/PROCESSOR... -- PACKAGE...")
		os.Exit(2)
	}
	failed := false
	for _, platform := range os.Args[1:split] {
		system, processor, _ := strings.Cut(platform, "/")
		count, err := check(system, processor, os.Args[split+1:])
		if err != nil {
			fmt.Fprintf(os.Stderr, "types: %s:\n%v\n", platform, err)
			failed = true
			continue
		}
		fmt.Printf("types: %s: %d packages\n", platform, count)
	}
	if failed {
		os.Exit(1)
	}
}

// check type-checks the packages, their tests and what they import, in the order of go list, which names what is
// imported first. It returns how many there are. A package with its tests is another one than without.
func check(system, processor string, packages []string) (int, error) {
	command := exec.Command("go", append([]string{"list", "-deps", "-test",
		"-json=ImportPath,Dir,GoFiles,ImportMap,Module"}, packages...)...)
	command.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return 0, fmt.Errorf("go list: %w", err)
	}
	known := map[string]*types.Package{"unsafe": types.Unsafe}
	sizes := types.SizesFor("gc", processor)
	var all []error
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var one listed
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			return len(known), errors.Join(all...)
		} else if err != nil {
			return 0, fmt.Errorf("what go list printed: %w", err)
		}
		// The main packages of tests are generated.
		if one.ImportPath == "unsafe" || strings.HasSuffix(one.ImportPath, ".test") {
			continue
		}
		errs := one.check(known, sizes)
		all = append(all, errs...)
	}
}

// check type-checks one package whose imports are known, and adds it to those. Bodies of functions are looked at in this
// module only.
func (one *listed) check(known map[string]*types.Package, sizes types.Sizes) (errs []error) {
	own := one.Module != nil && one.Module.Main
	set := token.NewFileSet()
	files := make([]*ast.File, 0, len(one.GoFiles))
	for _, name := range one.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(one.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return []error{err}
		}
		files = append(files, file)
	}
	config := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if mapped, ok := one.ImportMap[path]; ok {
				path = mapped
			}
			if found := known[path]; found != nil {
				return found, nil
			}
			return nil, fmt.Errorf("package %q is not among what go list printed", path)
		}),
		Sizes:            sizes,
		IgnoreFuncBodies: !own,
		Error: func(err error) {
			if own {
				errs = append(errs, err)
			}
		},
	}
	path, _, _ := strings.Cut(one.ImportPath, " ") // behind it stands whose tests it is compiled for
	pack, err := config.Check(path, set, files, nil)
	if err != nil && !own {
		errs = append(errs, err)
	}
	known[one.ImportPath] = pack
	return errs
}

// importer is a function as a types.Importer.
type importer func(path string) (*types.Package, error)

func (f importer) Import(path string) (*types.Package, error) { return f(path) }
