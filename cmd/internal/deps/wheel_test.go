//go:build unix

package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/pins"
)

// zipped is a zip archive of files.
func zipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, text := range files {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// smallWheel is a recipe of files in a wheel, which a stand-in for pip copies before it runs a script.
func smallWheel(t *testing.T, files map[string]string, script string) (r recipe, bin string) {
	t.Helper()
	dir := t.TempDir()
	bin = filepath.Join(dir, "bin")
	wheel := zipped(t, files)
	writeFile(t, filepath.Join(dir, "w.whl"), string(wheel))
	pip := "#!/bin/sh\necho $@ >> '" + dir + "/pip.log'\ncp '" + dir + "/w.whl' lib-1.0-cp311.whl\n" + script + "\n"
	writeFile(t, filepath.Join(bin, "pip"), pip)
	return recipe{
		Name:     "lib",
		OS:       runtime.GOOS,
		Arch:     runtime.GOARCH,
		Packages: []pkg{{"lib", "1.0", fmt.Sprintf("%x", sha256.Sum256(wheel)), "some_platform"}},
		Files:    []file{{"lib/capi/lib.so", "lib.so"}, {"lib/LICENSE", "LICENSE"}},
	}, bin
}

// wheelFiles are the files of a wheel, of which one is not wanted.
var wheelFiles = map[string]string{
	"lib/capi/lib.so": "library",
	"lib/LICENSE":     "free",
	"lib/other.py":    "unwanted",
}

// Files of a wheel are taken once, and again when the pin changes or one is gone.
func TestMakeOfWheel(t *testing.T) {
	r, bin := smallWheel(t, wheelFiles, "")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	dir := t.TempDir()
	lib := filepath.Join(dir, "lib")
	make := func(want bool) {
		t.Helper()
		made, err := r.make(t.Context(), dir)
		if err != nil || made != want {
			t.Fatalf("made %v, %v; want %v", made, err, want)
		}
		got, err := os.ReadFile(filepath.Join(lib, "lib.so"))
		if err != nil || string(got) != "library" {
			t.Fatalf("the library holds %q, %v", got, err)
		}
		if names := entries(t, lib); !slices.Equal(names, []string{"LICENSE", "lib.so", "recipe.json"}) {
			t.Fatalf("made %q", names)
		}
		if left := entries(t, dir); !slices.Equal(left, []string{"lib"}) {
			t.Fatalf("left %q", left)
		}
	}

	make(true)
	make(false)
	if err := os.Remove(filepath.Join(lib, "lib.so")); err != nil {
		t.Fatal(err)
	}
	make(true)
	r.Packages[0].Version = "1.1"
	make(true)

	log, err := os.ReadFile(filepath.Join(filepath.Dir(bin), "pip.log"))
	const call = "download --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: " +
		"--implementation cp --python-version 311 --platform some_platform --dest . lib==1.1"
	if err != nil || !strings.Contains(string(log), call) {
		t.Errorf("pip was called as\n%s%v", log, err)
	}
}

// Where there is no pip, pip3 is called.
func TestMakeByPip3(t *testing.T) {
	r, bin := smallWheel(t, wheelFiles, "")
	if err := os.Rename(filepath.Join(bin, "pip"), filepath.Join(bin, "pip3")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+onlyTools(t, "cp"))

	if made, err := r.make(t.Context(), t.TempDir()); err != nil || !made {
		t.Errorf("made %v, %v", made, err)
	}
}

// A wheel that is not as the recipe says, or does not come, is an error that says so, and nothing is left.
func TestMakeOfWheelRefuses(t *testing.T) {
	same := func(*recipe) {}
	for _, c := range []struct {
		name   string
		files  map[string]string
		script string
		change func(r *recipe)
		want   string
	}{
		{
			name:   "other digest",
			files:  wheelFiles,
			change: func(r *recipe) { r.Packages[0].SHA256 = strings.Repeat("1", 64) },
			want:   "want 11111111",
		},
		{
			name:   "other system",
			files:  wheelFiles,
			change: func(r *recipe) { r.OS = "plan9" },
			want:   "the package is for plan9",
		},
		{
			name:   "file missing",
			files:  map[string]string{"lib/LICENSE": "free"},
			change: same,
			want:   `no file "lib/capi/lib.so"`,
		},
		{name: "two archives", files: wheelFiles, script: "touch second.whl", change: same, want: "left 2 files"},
		{name: "nothing comes", files: wheelFiles, script: "rm *.whl", change: same, want: "left 0 files"},
		{
			name:   "client fails",
			files:  wheelFiles,
			script: "echo no network >&2; exit 3",
			change: same,
			want:   "no network",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, bin := smallWheel(t, c.files, c.script)
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			c.change(&r)
			dir := t.TempDir()

			made, err := r.make(t.Context(), dir)

			if made || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("made %v: %v, want an error with %q", made, err, c.want)
			}
			if left := entries(t, dir); len(left) > 0 {
				t.Errorf("left %q", left)
			}
		})
	}
}

// Without pip the error says that it is needed.
func TestMakeWithoutPip(t *testing.T) {
	r, _ := smallWheel(t, wheelFiles, "")
	t.Setenv("PATH", t.TempDir())
	if _, err := r.make(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "needs pip in PATH") {
		t.Errorf("got %v", err)
	}
}

// Wheels cannot write outside their folder, nor make links, and only what is wanted comes out.
func TestUnzip(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range []string{"a/x", "a/../../../b", "/a/c", "a/../c/d", "c/e"} {
		if _, err := w.Create(name); err != nil {
			t.Fatal(err)
		}
	}
	link := &zip.FileHeader{Name: "a/link"}
	link.SetMode(os.ModeSymlink | 0o777)
	if _, err := w.CreateHeader(link); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	archive, to := filepath.Join(dir, "a.whl"), filepath.Join(dir, "deep", "to")
	writeFile(t, archive, b.String())

	if err := unpack(archive, to, "a/", "b"); err != nil {
		t.Fatal(err)
	}

	if got, want := filesBelow(t, dir), []string{archive, filepath.Join(to, "a", "x")}; !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
	for _, text := range []string{"", "no archive", b.String()[:b.Len()-10]} {
		writeFile(t, archive, text)
		if err := unpack(archive, to, "a/"); err == nil {
			t.Errorf("a broken archive of %d bytes was unpacked", len(text))
		}
	}
}

// A file that is larger than the bound is not written.
func TestLargeFiles(t *testing.T) {
	left := int64(10)
	if err := write(t.TempDir(), "large", strings.NewReader(strings.Repeat("x", 11)), &left); err == nil {
		t.Error("a file above the bound was written")
	}
}

// Every file of a package that is executed has a digest in the programs, and nothing else has.
func TestWhatIsExecutedIsPinned(t *testing.T) {
	for i := range recipes {
		r := &recipes[i]
		if r.Source != "" || r.Requirements != "" {
			continue // built here, or installed by pip with the digests of the wheels
		}
		pinned := slices.Sorted(maps.Keys(pins.Of(r.Name, r.OS, r.Arch)))
		if code := slices.Sorted(slices.Values(r.code())); len(code) == 0 || !slices.Equal(code, pinned) {
			t.Errorf("%s %s/%s: internal/pins has digests of %q, want of %q: print them with -pins %s", r.Name, r.OS,
				r.Arch, pinned, code, r.Name)
		}
	}
}

// allRecipes are the recipes of packages with pins.
var allRecipes = slices.Concat([]recipe{llamaCpp, highs, qnn}, onnxRuntime, highsNative)

// Pins are whole, files stay in their folder, and every package has a licence.
func TestRecipes(t *testing.T) {
	digest := regexp.MustCompile(`^[0-9a-f]{64}$`)
	for _, r := range allRecipes {
		for _, p := range r.Packages {
			if !digest.MatchString(p.SHA256) || p.Version == "" {
				t.Errorf("%s %s/%s: package %+v", r.Name, r.OS, r.Arch, p)
			}
		}
		licence := r.Licence != ""
		for _, f := range r.Files {
			if !filepath.IsLocal(f.From) || filepath.Base(f.To) != f.To && f.To != f.From {
				t.Errorf("%s: file %+v", r.Name, f)
			}
			licence = licence || path.Base(f.To) == "LICENSE"
		}
		if !licence {
			t.Errorf("%s: no licence", r.Name)
		}
	}
}

// The library of every platform has a name that hetc looks for.
func TestNamesOfLibraries(t *testing.T) {
	runtimes := map[string]*regexp.Regexp{
		"linux":   regexp.MustCompile(`^libonnxruntime\.so(\..*)?$`),
		"darwin":  regexp.MustCompile(`^libonnxruntime(\..*)?\.dylib$`),
		"windows": regexp.MustCompile(`^onnxruntime\.dll$`),
	}
	solvers := map[string]*regexp.Regexp{
		"linux":   regexp.MustCompile(`^libhighs\.so$`),
		"darwin":  regexp.MustCompile(`^libhighs\.dylib$`),
		"windows": regexp.MustCompile(`^highs\.dll$`),
	}
	check := func(recipes []recipe, names map[string]*regexp.Regexp) {
		for _, r := range recipes {
			if !slices.ContainsFunc(r.Files, func(f file) bool { return names[r.OS].MatchString(f.To) }) {
				t.Errorf("%s %s/%s: no library among %+v", r.Name, r.OS, r.Arch, r.Files)
			}
		}
	}
	check(onnxRuntime, runtimes)
	check(highsNative, solvers)
}

// A package is chosen by its name and platform. Where there is none, none is chosen, and a name that is unknown is an
// error that lists the others.
func TestChoose(t *testing.T) {
	const none = "-"
	for _, c := range []struct{ name, os, arch, wheel string }{
		{name: "onnxruntime", os: "linux", arch: "arm64", wheel: "manylinux_2_28_aarch64"},
		{name: "onnxruntime", os: "windows", arch: "amd64", wheel: "win_amd64"},
		{name: "onnxruntime", os: "plan9", arch: "amd64", wheel: none},
		{name: "onnxruntime", os: "darwin", arch: "amd64", wheel: none},
		{name: "highs", os: "plan9", arch: "mips", wheel: ""},
		{name: "highs-native", os: "linux", arch: "arm64", wheel: "manylinux2014_aarch64"},
		{name: "highs-native", os: "windows", arch: "arm64", wheel: none},
		{name: "llama.cpp", os: "linux", arch: "amd64", wheel: ""},
		{name: "onnxruntime-qnn", os: "linux", arch: "amd64", wheel: "manylinux_2_35_x86_64"},
		{name: "onnxruntime-qnn", os: "linux", arch: "arm64", wheel: none},
		{name: "onnxruntime-qnn", os: "windows", arch: "arm64", wheel: none},
	} {
		r, err := choose(c.name, c.os, c.arch)
		if err != nil || (r == nil) != (c.wheel == none) || r != nil && r.Packages[0].Wheel != c.wheel {
			t.Errorf("%+v: got %+v, %v", c, r, err)
		}
	}

	_, err := choose("nothing", "linux", "amd64")
	const names = "onnxruntime, highs, highs-native, llama.cpp, llama-server, python-peers, onnxruntime-qnn"
	if err == nil || !strings.Contains(err.Error(), names) {
		t.Errorf("unknown name: %v", err)
	}
}

// A package with terms says them, and where they lie, before it is fetched. It is fetched by a command of its own.
func TestTerms(t *testing.T) {
	for _, f := range qnn.TermFiles {
		if !slices.ContainsFunc(qnn.Files, func(x file) bool { return x.To == f }) {
			t.Errorf("terms %q are not kept", f)
		}
	}
	if !strings.Contains(qnn.Terms, "accepts") {
		t.Errorf("terms %q do not say that fetching accepts them", qnn.Terms)
	}
	for _, r := range allRecipes {
		if r.Terms != "" && r.Name != qnn.Name {
			t.Errorf("%s has terms, and is not fetched by a command of its own", r.Name)
		}
	}
}

// A package that fails does not keep the others from being made, and every failure is told.
func TestRunGoesOn(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"npm", "pip"} {
		writeFile(t, filepath.Join(bin, tool), "#!/bin/sh\necho no network for "+tool+" >&2\nexit 1\n")
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	dir := filepath.Join(t.TempDir(), "new")

	err := run(t.Context(), dir, []string{"nothing", "onnxruntime", "highs"})

	want := []string{`unknown name "nothing"`, "highs: npm", "no network for npm"}
	if r, _ := choose("onnxruntime", runtime.GOOS, runtime.GOARCH); r != nil {
		want = append(want, "onnxruntime: pip", "no network for pip")
	}
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v: want %q", err, w)
		}
	}
	if left := entries(t, dir); !slices.Equal(left, []string{".lock"}) {
		t.Errorf("left %q", left)
	}
}

// A run without names, and one that is interrupted, are errors.
func TestRunRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := run(t.Context(), dir, nil); err == nil {
		t.Error("nothing was named, and nothing said")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ended, dir, []string{"highs"}); err == nil {
		t.Error("an ended run succeeded")
	}
}
