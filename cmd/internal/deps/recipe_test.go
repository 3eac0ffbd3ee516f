//go:build unix

package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// writeFile writes an executable file, with the folders above it.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// small is a recipe with a library and a program of a few lines, whose archive a stand-in for npm copies. git and g++
// are the real ones.
func small(t *testing.T) (r recipe, bin string) {
	t.Helper()
	for _, tool := range []string{"git", "g++"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("builds a program: %v", err)
		}
	}
	dir := t.TempDir()
	archive := smallArchive(t, dir)
	bin = filepath.Join(dir, "bin")
	npm := "#!/bin/sh\necho $@ >> '" + dir + "/npm.log'\ncp '" + dir + "/archive.tgz' package.tgz\n"
	writeFile(t, filepath.Join(bin, "npm"), npm)
	ask := program{
		Name:  "ask",
		Dir:   "tools/ask",
		Files: []string{"a*.cpp"},
		Texts: map[string]string{"made.h": ""},
	}
	return recipe{
		Name:     "small",
		OS:       runtime.GOOS,
		Arch:     runtime.GOARCH,
		Packages: []pkg{{"small", "1.2.3", fmt.Sprintf("%x", sha256.Sum256(archive)), ""}},
		Source:   "llama/source.bundle",
		Libs:     "bins/x",
		Licence:  "LICENSE",
		Include:  []string{"include"},
		Link:     []string{"libanswer.so"},
		Programs: []program{ask},
	}, bin
}

// smallArchive writes archive.tgz of a source and a library, and returns it.
func smallArchive(t *testing.T, dir string) []byte {
	t.Helper()
	for name, text := range map[string]string{
		"src/include/answer.h": "int answer();\n",
		"src/answer.cpp":       "int answer() { return 42; }\n",
		"src/tools/ask/ask.cpp": "#include <answer.h>\n#include <cstdio>\n" +
			"int main() { printf(\"%d\\n\", answer()); }\n",
		"src/LICENSE": "free\n",
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	build := exec.Command("sh", "-e", "-c", `cd src
git init -q .
git add .
git -c user.name=t -c user.email=t@t commit -q -m s
git bundle create -q ../source.bundle HEAD
g++ -shared -fPIC -o libanswer.so answer.cpp`)
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	archive := tgz(t, map[string]string{
		"package/llama/source.bundle": read("source.bundle"),
		"package/bins/x/libanswer.so": read("src/libanswer.so"),
		"package/dist/unwanted.js":    "x",
	})
	writeFile(t, filepath.Join(dir, "archive.tgz"), string(archive))
	return archive
}

// tgz is a compressed tar archive of files.
func tgz(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		header := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// filesBelow are the paths of all files below a folder.
func filesBelow(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// entries are the names in a folder.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// A build is made once, is whole, and is made again when the recipe changes or a file is gone.
func TestMake(t *testing.T) {
	r, bin := small(t)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".small.killed"), 0o755); err != nil { // what a killed run leaves
		t.Fatal(err)
	}
	make := func(want bool) {
		t.Helper()
		made, err := r.make(t.Context(), dir)
		if err != nil || made != want {
			t.Fatalf("made %v, %v; want %v", made, err, want)
		}
		out, err := exec.Command(filepath.Join(dir, "small", "ask")).Output()
		if err != nil || string(out) != "42\n" {
			t.Fatalf("the program says %q, %v", out, err)
		}
		if got, want := entries(t, dir), []string{"small"}; !slices.Equal(got, want) {
			t.Fatalf("left %q, want %q", got, want)
		}
		files := []string{"LICENSE", "ask", "libanswer.so", recipeFile}
		if got := entries(t, filepath.Join(dir, "small")); !slices.Equal(got, files) {
			t.Fatalf("made %q, want %q", got, files)
		}
	}

	make(true)
	make(false)
	if err := os.Remove(filepath.Join(dir, "small", "ask")); err != nil {
		t.Fatal(err)
	}
	make(true)
	r.Packages[0].Version = "1.2.4"
	make(true)

	log, err := os.ReadFile(filepath.Join(filepath.Dir(bin), "npm.log"))
	if err != nil || !strings.Contains(string(log), "pack --silent --ignore-scripts small@1.2.4") {
		t.Errorf("npm was called as\n%s%v", log, err)
	}
}

// onlyTools is a PATH with some tools alone.
func onlyTools(t *testing.T, tools ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range tools {
		at, err := exec.LookPath(tool)
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(at, filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A build without its tools or files, or that does not end, is an error that says so. Nothing is left, least of all
// something that looks complete.
func TestMakeRefuses(t *testing.T) {
	good, bin := small(t)
	path := os.Getenv("PATH")
	hanging := t.TempDir()
	writeFile(t, filepath.Join(hanging, "npm"), "#!/bin/sh\nsleep 600\n")
	same := func(*recipe) {}
	for _, c := range []struct {
		name   string
		path   string
		change func(r *recipe)
		limit  time.Duration // 0: 5 s
		want   string
	}{
		{
			name:   "other digest",
			path:   bin + ":" + path,
			change: func(r *recipe) { r.Packages[0].SHA256 = strings.Repeat("0", 64) },
			want:   "want 0000000000000000",
		},
		{
			name:   "other system",
			path:   bin + ":" + path,
			change: func(r *recipe) { r.OS, r.Arch = "plan9", "mips" },
			want:   "the package is for plan9/mips",
		},
		{
			name:   "no such file",
			path:   bin + ":" + path,
			change: func(r *recipe) { r.Programs[0].Files = []string{"gone.cpp"} },
			want:   "gone.cpp",
		},
		{
			name:   "no libraries",
			path:   bin + ":" + path,
			change: func(r *recipe) { r.Libs = "bins/y" },
			want:   "bins/y",
		},
		{
			name:   "no source",
			path:   bin + ":" + path,
			change: func(r *recipe) { r.Source = "llama/x" },
			want:   "git: ",
		},
		{name: "no npm, g++", path: onlyTools(t, "git"), change: same, want: "needs npm, g++ in PATH"},
		{name: "no git", path: bin + ":" + onlyTools(t, "g++"), change: same, want: "needs git in PATH"},
		{
			name:   "npm hangs",
			path:   hanging + ":" + path,
			change: same,
			limit:  200 * time.Millisecond,
			want:   "deadline",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("PATH", c.path)
			r := good
			r.Packages, r.Programs = slices.Clone(good.Packages), slices.Clone(good.Programs)
			c.change(&r)
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(c.limit, 5*time.Second))
			defer cancel()

			made, err := r.make(ctx, dir)

			if made || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("made %v: %v, want an error with %q", made, err, c.want)
			}
			if left := entries(t, dir); len(left) > 0 {
				t.Errorf("left %q", left)
			}
		})
	}
}

// Archives cannot write outside their folder, and only what is wanted comes out.
func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	archive, to := filepath.Join(dir, "a.tgz"), filepath.Join(dir, "deep", "to")
	writeFile(t, archive, string(tgz(t, map[string]string{
		"package/bins/x/a":             "1",
		"package/../../bins/x/b":       "2",
		"package/bins/x/../../../../c": "3",
		"package/bins/xx/d":            "4",
		"bins/x/e":                     "5",
	})))

	if err := unpack(archive, to, "bins/x/"); err != nil {
		t.Fatal(err)
	}

	want := []string{archive, filepath.Join(to, "bins", "x", "a")}
	if got := filesBelow(t, dir); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
	writeFile(t, archive, "no archive")
	if err := unpack(archive, to, "bins/x/"); err == nil {
		t.Error("a broken archive was unpacked")
	}
}

// Every wheel of the Python environment has a version and a digest.
func TestPythonWheels(t *testing.T) {
	digest := regexp.MustCompile(`^[0-9a-f]{64}$`)
	var names []string
	digests := 0 // of the last wheel
	for line := range strings.SplitSeq(pythonWheels, "\n") {
		line = strings.TrimSuffix(strings.TrimSpace(line), " \\")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if hash, ok := strings.CutPrefix(line, "--hash=sha256:"); ok {
			digests++
			if !digest.MatchString(hash) {
				t.Errorf("digest %q", hash)
			}
			continue
		}
		name, version, ok := strings.Cut(line, "==")
		if !ok || version == "" || len(names) > 0 && digests == 0 {
			t.Errorf("%q: want name==version, and a digest before the next", line)
		}
		names, digests = append(names, name), 0
	}
	if digests == 0 {
		t.Error("the last wheel has no digest")
	}
	for _, engine := range []string{"openvino", "onnxruntime", "ctranslate2"} {
		if !slices.Contains(names, engine) {
			t.Errorf("wheels %v, want %s", names, engine)
		}
	}
}

// The Python environment is made once by pip, with versions and digests alone, and again when the wheels change.
func TestPythonEnvironment(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	// It stands in for python3, and is what python3 makes.
	writeFile(t, filepath.Join(bin, "python3"), `#!/bin/sh
if [ "$2" = venv ]; then
	mkdir -p "$3/bin"
	cp "$0" "$3/bin/python3"
	exit 0
fi
echo "$@" > '`+dir+`/said'
for last; do :; done
cp "$last" '`+dir+`/wheels'
`)
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	r := recipe{Name: "python", OS: runtime.GOOS, Arch: runtime.GOARCH, Requirements: "a==1 --hash=sha256:b\n"}
	make := func(want bool) {
		t.Helper()
		if made, err := r.make(t.Context(), dir); err != nil || made != want {
			t.Fatalf("made %v, %v, want %v", made, err, want)
		}
	}

	make(true)
	make(false)
	said, err := os.ReadFile(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"-m pip install", "--require-hashes", "--no-deps", "--only-binary=:all:"} {
		if !strings.Contains(string(said), option) {
			t.Errorf("pip was called with %q, without %s", said, option)
		}
	}
	wheels, err := os.ReadFile(filepath.Join(dir, "wheels"))
	if err != nil || string(wheels) != r.Requirements {
		t.Errorf("wheels %q, %v", wheels, err)
	}

	r.Requirements += "c==2 --hash=sha256:d\n"
	make(true)

	t.Setenv("PATH", t.TempDir())
	r.Requirements += "#\n"
	if _, err := r.make(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "needs python3 in PATH") {
		t.Errorf("without python3: %v", err)
	}
}
