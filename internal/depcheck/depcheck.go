// Package depcheck knows which package may import which, and a few calls that only some may make.
// Its test reads every Go file of the module, whatever its build tags.
package depcheck

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// pkg is what the files of one directory import, test files left out.
type pkg struct {
	dir     string
	name    string
	imports map[string]string // import path -> "file:line" of the first one
	comment string            // package comment
}

// module is the parsed source of one module.
type module struct {
	path  string // module path
	pkgs  map[string]*pkg
	finds []string // breaches found while parsing
}

// load parses every Go file below root that is not a test, whatever its build tags. Hidden
// directories and testdata are left out, as the go tool does.
func load(root, modulePath string) (*module, error) {
	m := &module{path: modulePath, pkgs: map[string]*pkg{}}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if file != root && (name == "testdata" || name == "vendor" || name[0] == '.' || name[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || name[0] == '.' || name[0] == '_' {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		m.add(fset, filepath.ToSlash(rel), f)
		return nil
	})
	return m, err
}

// add records the package comment and the imports of a file, and finds calls that the policy
// forbids.
func (m *module) add(fset *token.FileSet, file string, f *ast.File) {
	dir := path.Dir(file)
	p := m.pkgs[dir]
	if p == nil {
		p = &pkg{dir: dir, name: f.Name.Name, imports: map[string]string{}}
		m.pkgs[dir] = p
	}
	if f.Doc != nil && p.comment == "" {
		p.comment = f.Doc.Text()
	}
	names := map[string]string{} // local name -> import path
	for _, spec := range f.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		// The first file that imports a package stands for all of them in findings.
		if _, ok := p.imports[target]; !ok {
			p.imports[target] = fmt.Sprintf("%s:%d", file, fset.Position(spec.Pos()).Line)
		}
		name := lastWord(target)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = target
	}
	// calls, by the local names of imported packages
	ast.Inspect(f, func(n ast.Node) bool {
		// Types are not known here: name.Selector is taken for a call into the package imported under that name. A
		// local variable of the same name would be taken for it, too.
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		target, ok := names[x.Name]
		if !ok {
			return true
		}
		for _, c := range calls {
			if c.pkg != target || inRooms(dir, c.rooms) {
				continue
			}
			all := c.names[0] == "*" && !slices.Contains(c.allowed, sel.Sel.Name)
			if all || slices.Contains(c.names, sel.Sel.Name) {
				m.find("%s:%d: %s.%s is not allowed in %s: %s", file, fset.Position(sel.Pos()).Line, lastWord(target), sel.Sel.Name, dir, c.reason)
			}
		}
		return true
	})
}

// lastWord returns the name a package has by convention: the last element of its import path, the one
// before where that is a version.
func lastWord(target string) string {
	name := path.Base(target)
	if len(name) > 1 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9' {
		name = path.Base(path.Dir(target))
	}
	return name
}

// find notes a breach; the first word says where it is.
func (m *module) find(format string, args ...any) {
	m.finds = append(m.finds, fmt.Sprintf(format, args...))
}

// inRooms reports whether dir is one of rooms; "cmd/" permits everything below cmd.
func inRooms(dir string, rooms []string) bool {
	for _, r := range rooms {
		if strings.HasSuffix(r, "/") && strings.HasPrefix(dir+"/", r) || match(r, dir) {
			return true
		}
	}
	return false
}

// match reports whether a directory fits a pattern of path.Match, in which a star stops at a slash.
func match(pattern, dir string) bool {
	ok, err := path.Match(pattern, dir)
	return err == nil && ok
}

// rowOf returns the row of a directory: the exact one before one with a pattern.
func rowOf(rows []room, dir string) *room {
	var found *room
	for i := range rows {
		if rows[i].path == dir {
			return &rows[i]
		}
		if found == nil && match(rows[i].path, dir) {
			found = &rows[i]
		}
	}
	return found
}

// closure returns every row reachable from r, as patterns; nil means everything.
func closure(rows []room, r *room) (reach map[string]bool, all bool) {
	reach = map[string]bool{}
	var visit func(r *room)
	visit = func(r *room) {
		for _, to := range r.may {
			if to == everything {
				all = true
				continue
			}
			// Patterns may name each other in a circle: each is visited once.
			if reach[to] {
				continue
			}
			reach[to] = true
			for i := range rows {
				if rows[i].path == to || match(to, rows[i].path) {
					visit(&rows[i])
				}
			}
			// A package without a row of its own has that of a pattern.
			if !strings.Contains(to, "*") {
				if row := rowOf(rows, to); row != nil {
					visit(row)
				}
			}
		}
	}
	visit(r)
	for _, h := range helpers {
		reach[h] = true
	}
	return reach, all
}

// check compares the module with the policy and returns every breach, sorted.
func (m *module) check(rows []room) []string {
	for dir, p := range m.pkgs {
		if slices.Contains(badNames, path.Base(dir)) || slices.Contains(badNames, p.name) {
			m.find("%s: the name says nothing about what the package knows", dir)
		}
		if p.name != "main" && !strings.HasPrefix(p.comment, "Package "+p.name+" knows ") {
			m.find("%s: the package comment does not begin with %q", dir, "Package "+p.name+" knows ")
		}
		row := rowOf(rows, dir)
		if row == nil {
			m.find("%s: package without a row in internal/depcheck/table.go", dir)
			continue
		}
		reach, all := closure(rows, row)
		// Three questions of an import: may this room name it at all, may it see that package of ours, and was that
		// module chosen for it?
		for target, where := range p.imports {
			for _, i := range importers {
				if i.pkg == target && !inRooms(dir, i.rooms) {
					m.find("%s: import of %q is not allowed in %s: %s", where, target, dir, i.reason)
				}
			}
			own, ok := m.own(target)
			switch {
			case ok:
				if !permitted(own, reach, all) {
					m.find("%s: %s may not import %s", where, dir, own)
				}
			case strings.Contains(strings.SplitN(target, "/", 2)[0], "."):
				if !slices.ContainsFunc(row.third, func(t string) bool { return target == t || strings.HasPrefix(target, t+"/") }) {
					m.find("%s: %s may not import module %s", where, dir, target)
				}
			}
		}
	}
	// The table must not grow stale either: a row without a package, and an unused permission, are findings.
	for i := range rows {
		if !m.exists(rows[i].path) {
			m.find("%s: row without a package", rows[i].path)
			continue
		}
		m.unused(&rows[i])
	}
	sort.Strings(m.finds)
	return slices.Compact(m.finds)
}

// unused finds what a row permits and none of its packages imports: an unused permission hides the next edge
// that was not thought about.
func (m *module) unused(r *room) {
	imported := func(fits func(target string) bool) bool {
		for dir, p := range m.pkgs {
			if rowOf([]room{*r}, dir) == nil {
				continue
			}
			for target := range p.imports {
				if fits(target) {
					return true
				}
			}
		}
		return false
	}
	for _, to := range r.may {
		own := func(target string) bool {
			dir, ok := m.own(target)
			return ok && match(to, dir)
		}
		if to != everything && !imported(own) {
			m.find("%s: the row permits %s, which no package of it imports", r.path, to)
		}
	}
	for _, module := range r.third {
		if !imported(func(target string) bool { return target == module || strings.HasPrefix(target, module+"/") }) {
			m.find("%s: the row permits module %s, which no package of it imports", r.path, module)
		}
	}
}

// permitted reports whether a package may be imported, by the patterns that its importer's row
// reaches.
func permitted(target string, reach map[string]bool, all bool) bool {
	if all && (!strings.HasPrefix(target, "cmd/") || strings.HasPrefix(target, "cmd/internal/")) {
		return true
	}
	for to := range reach {
		if to == target || match(to, target) {
			return true
		}
	}
	return false
}

// exists reports whether a row's pattern matches any package.
func (m *module) exists(pattern string) bool {
	for dir := range m.pkgs {
		if match(pattern, dir) {
			return true
		}
	}
	return false
}

// own returns the directory of an import path of this module.
func (m *module) own(target string) (string, bool) {
	if target == m.path {
		return ".", true
	}
	return strings.CutPrefix(target, m.path+"/")
}

// links returns every package of the module and of others that dir reaches, each with the
// directory that imports it, whatever the build tags. Other modules are not opened.
func (m *module) links(dir string) map[string]string {
	out := map[string]string{}
	var visit func(dir string)
	visit = func(dir string) {
		p := m.pkgs[dir]
		if p == nil {
			return
		}
		for target := range p.imports {
			name := target
			own, ok := m.own(target)
			if ok {
				name = own
			}
			if _, seen := out[name]; seen {
				continue
			}
			out[name] = dir
			if ok {
				visit(own)
			}
		}
	}
	visit(dir)
	return out
}
