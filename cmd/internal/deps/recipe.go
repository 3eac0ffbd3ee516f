package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// recipe says how one engine's programs are made. What it was when they were made is kept beside them.
type recipe struct {
	Name     string    `json:"name"`
	OS       string    `json:"os"`
	Arch     string    `json:"arch"`
	Packages []pkg     `json:"packages"`
	Source   string    `json:"source"`    // git bundle in the packages
	Libs     string    `json:"libraries"` // folder of the packages
	Licence  string    `json:"licence"`   // file of the source
	Include  []string  `json:"include"`   // folders of the source
	Link     []string  `json:"link"`      // libraries in the order of linking
	Programs []program `json:"programs"`
}

// pkg is a package of the npm registry; SHA256 is that of the archive the registry serves.
type pkg struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
}

// program is built from the C++ files of one folder of the source.
type program struct {
	Name  string   `json:"name"`
	Dir   string   `json:"dir"`
	Files []string `json:"files"`
}

// llamaCpp takes the prebuilt shared libraries, one per kind of CPU, and builds the tools, which the package
// lacks, from the source of the same release that it brings along.
var llamaCpp = recipe{
	Name: "llama.cpp", OS: "linux", Arch: "amd64",
	Packages: []pkg{
		{"node-llama-cpp", "3.22.1", "a0d9dd80eacd2ab1cfe71aee57ac8a806487fd70b3d2a38fbec637752d9e5c5f"},
		{"@node-llama-cpp/linux-x64", "3.22.1", "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0"},
	},
	Source:  "llama/gitRelease.bundle",
	Libs:    "bins/linux-x64",
	Licence: "LICENSE",
	Include: []string{"include", "ggml/include", "common", "vendor"},
	Link:    []string{"libllama-common.so", "libllama.v0.5.0.so", "libggml.v0.5.0.so", "libggml-base.so"},
	Programs: []program{
		{"llama-bench", "tools/llama-bench", []string{"llama-bench.cpp", "main.cpp"}},
		{"llama-quantize", "tools/quantize", []string{"quantize.cpp", "main.cpp"}},
		{"llama-perplexity", "tools/perplexity", []string{"perplexity.cpp", "main.cpp"}},
	},
}

const recipeFile = "recipe.json"

// make builds dir/NAME unless it is there, and removes what runs that were killed have left.
func (r *recipe) make(ctx context.Context, dir string) (made bool, err error) {
	want, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return false, err
	}
	final := filepath.Join(dir, r.Name)
	if got, err := os.ReadFile(filepath.Join(final, recipeFile)); err == nil && bytes.Equal(got, want) && r.complete(final) {
		return false, nil
	}
	if r.OS != runtime.GOOS || r.Arch != runtime.GOARCH {
		return false, fmt.Errorf("the package is for %s/%s, this is %s/%s: build the programs by hand and put them into PATH", r.OS, r.Arch, runtime.GOOS, runtime.GOARCH)
	}
	var missing []string
	for _, tool := range []string{"npm", "git", "g++"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	if len(missing) > 0 {
		return false, fmt.Errorf("needs %s in PATH", strings.Join(missing, ", "))
	}
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

// complete reports whether nothing was taken out of a finished folder.
func (r *recipe) complete(dir string) bool {
	names := append([]string{}, r.Link...)
	for _, p := range r.Programs {
		names = append(names, p.Name)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func (r *recipe) build(ctx context.Context, temp, out string) error {
	tree := filepath.Join(temp, "packages")
	for i, p := range r.Packages {
		archive, err := fetch(ctx, filepath.Join(temp, fmt.Sprintf("fetch%d", i)), p)
		if err != nil {
			return err
		}
		if err := unpack(archive, tree, r.Source, r.Libs+"/"); err != nil {
			return fmt.Errorf("unpack %s: %w", p.Name, err)
		}
	}
	if err := os.Rename(filepath.Join(tree, filepath.FromSlash(r.Libs)), out); err != nil {
		return err
	}
	source := filepath.Join(temp, "source")
	if err := command(ctx, temp, "git", "-c", "core.hooksPath=/dev/null", "clone", "-q", filepath.Join(tree, filepath.FromSlash(r.Source)), source); err != nil {
		return err
	}
	for _, p := range r.Programs {
		args := []string{"-O2", "-DNDEBUG", "-std=c++17", "-w", "-o", filepath.Join(out, p.Name)}
		for _, d := range append([]string{p.Dir}, r.Include...) {
			args = append(args, "-I"+filepath.Join(source, d))
		}
		for _, f := range p.Files {
			args = append(args, filepath.Join(source, p.Dir, f))
		}
		args = append(args, "-L"+out)
		for _, lib := range r.Link {
			args = append(args, "-l:"+lib)
		}
		if err := command(ctx, temp, "g++", append(args, "-lpthread", "-Wl,-rpath,$ORIGIN")...); err != nil {
			return err
		}
		if err := command(ctx, temp, filepath.Join(out, p.Name), "--help"); err != nil && errors.Is(err, errCannotStart) {
			return err
		}
	}
	licence, err := os.ReadFile(filepath.Join(source, r.Licence))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "LICENSE"), licence, 0o644)
}

// fetch downloads a package into an empty folder and checks it.
func fetch(ctx context.Context, dir string, p pkg) (archive string, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	if err := command(ctx, dir, "npm", "pack", "--silent", "--ignore-scripts", p.Name+"@"+p.Version); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("npm pack %s@%s left %d archives, want one", p.Name, p.Version, len(found))
	}
	f, err := os.Open(found[0])
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != p.SHA256 {
		return "", fmt.Errorf("package %s %s has sha256 %s, want %s: it is not the one that was pinned, nothing of it is used", p.Name, p.Version, got, p.SHA256)
	}
	return found[0], nil
}

// unpack writes the regular files of an npm archive whose path is one of wanted, or below one that ends in a
// slash.
func unpack(archive, dir string, wanted ...string) error {
	const most = 1 << 30 // bytes; the digest has been checked, so this only guards against a wrong pin
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	total := int64(0)
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name, ok := strings.CutPrefix(path.Clean(h.Name), "package/")
		if !ok || h.Typeflag != tar.TypeReg || !filepath.IsLocal(name) || !below(name, wanted) {
			continue
		}
		if total += h.Size; total > most {
			return fmt.Errorf("more than %d bytes", most)
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		w, err := os.Create(to)
		if err != nil {
			return err
		}
		if _, err := io.Copy(w, t); err != nil {
			w.Close()
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
	}
}

func below(name string, wanted []string) bool {
	for _, w := range wanted {
		if name == w || strings.HasSuffix(w, "/") && strings.HasPrefix(name, w) {
			return true
		}
	}
	return false
}

var errCannotStart = errors.New("the program that was built does not start")

// command runs a program; what it prints is in the error.
func command(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	c.WaitDelay = 5 * time.Second
	group(c)
	text, err := c.CombinedOutput()
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
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}
