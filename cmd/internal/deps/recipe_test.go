//go:build unix

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// small is a recipe with a library and a program of a few lines, whose archive a stand-in for npm copies. git
// and g++ are the real ones.
func small(t *testing.T) (r recipe, bin string) {
	t.Helper()
	for _, tool := range []string{"git", "g++"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("builds a program: %v", err)
		}
	}
	dir := t.TempDir()
	sh := func(script string) {
		c := exec.Command("sh", "-e", "-c", script)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("src/include/answer.h", "int answer();\n")
	write("src/answer.cpp", "int answer() { return 42; }\n")
	write("src/tools/ask/ask.cpp", "#include <answer.h>\n#include <cstdio>\nint main() { printf(\"%d\\n\", answer()); }\n")
	write("src/LICENSE", "free\n")
	sh(`cd src && git init -q . && git add . && git -c user.name=t -c user.email=t@t commit -q -m s && git bundle create -q ../source.bundle HEAD
g++ -shared -fPIC -o libanswer.so answer.cpp`)
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	archive := tgz(t, map[string]string{"package/llama/source.bundle": read("source.bundle"), "package/bins/x/libanswer.so": read("src/libanswer.so"), "package/dist/unwanted.js": "x"})
	write("archive.tgz", string(archive))
	bin = filepath.Join(dir, "bin")
	write("bin/npm", "#!/bin/sh\necho $@ >> '"+dir+"/npm.log'\ncp '"+dir+"/archive.tgz' package.tgz\n")
	return recipe{Name: "small", OS: runtime.GOOS, Arch: runtime.GOARCH,
		Packages: []pkg{{"small", "1.2.3", fmt.Sprintf("%x", sha256.Sum256(archive)), ""}},
		Source:   "llama/source.bundle", Libs: "bins/x", Licence: "LICENSE", Include: []string{"include"}, Link: []string{"libanswer.so"},
		Programs: []program{{Name: "ask", Dir: "tools/ask", Files: []string{"a*.cpp"}, Texts: map[string]string{"made.h": ""}}}}, bin
}

func tgz(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}); err != nil {
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
		if got, want := entries(t, filepath.Join(dir, "small")), []string{"LICENSE", "ask", "libanswer.so", recipeFile}; !slices.Equal(got, want) {
			t.Fatalf("made %q, want %q", got, want)
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

// Whatever goes wrong is named, and nothing is left, least of all something that looks complete.
func TestMakeRefuses(t *testing.T) {
	good, bin := small(t)
	path := os.Getenv("PATH")
	only := func(tools ...string) string { // a PATH with these alone
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
	hang := t.TempDir()
	if err := os.WriteFile(filepath.Join(hang, "npm"), []byte("#!/bin/sh\nsleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path   string
		change func(*recipe)
		want   string
	}{
		"other digest": {bin + ":" + path, func(r *recipe) { r.Packages[0].SHA256 = strings.Repeat("0", 64) }, "want 0000000000000000"},
		"no npm, g++":  {only("git"), func(*recipe) {}, "needs npm, g++ in PATH"},
		"no git":       {bin + ":" + only("g++"), func(*recipe) {}, "needs git in PATH"},
		"other system": {bin + ":" + path, func(r *recipe) { r.OS, r.Arch = "plan9", "mips" }, "the package is for plan9/mips"},
		"no such file": {bin + ":" + path, func(r *recipe) { r.Programs[0].Files = []string{"gone.cpp"} }, "gone.cpp"},
		"no libraries": {bin + ":" + path, func(r *recipe) { r.Libs = "bins/y" }, "bins/y"},
		"no source":    {bin + ":" + path, func(r *recipe) { r.Source = "llama/x" }, "git: "},
		"npm hangs":    {hang + ":" + path, func(*recipe) {}, "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", c.path)
			r := good
			r.Packages, r.Programs = slices.Clone(good.Packages), slices.Clone(good.Programs)
			c.change(&r)
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if strings.Contains(c.want, "deadline") {
				ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
			}
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
	archive := filepath.Join(dir, "a.tgz")
	files := map[string]string{"package/bins/x/a": "1", "package/../../bins/x/b": "2", "package/bins/x/../../../../c": "3", "package/bins/xx/d": "4", "bins/x/e": "5"}
	if err := os.WriteFile(archive, tgz(t, files), 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "deep", "to")
	if err := unpack(archive, to, "bins/x/"); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && p != archive {
			got = append(got, p)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{filepath.Join(to, "bins", "x", "a")}; !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
	if err := os.WriteFile(archive, []byte("no archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unpack(archive, to, "bins/x/"); err == nil {
		t.Error("a broken archive was unpacked")
	}
}

// Every wheel of the Python environment has a version and a digest, and the environment is made by pip with both.
func TestPythonEnvironment(t *testing.T) {
	var names []string
	digests := 0
	for line := range strings.SplitSeq(pythonWheels, "\n") {
		line = strings.TrimSuffix(strings.TrimSpace(line), " \\")
		digest, isDigest := strings.CutPrefix(line, "--hash=sha256:")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case isDigest:
			if digests++; len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
				t.Errorf("digest %q", digest)
			}
			continue
		}
		name, version, ok := strings.Cut(line, "==")
		if !ok || version == "" || len(names) > 0 && digests == 0 {
			t.Errorf("%q: want name==version, and a digest before the next", line)
		}
		names, digests = append(names, name), 0
	}
	if digests == 0 || !slices.Contains(names, "openvino") || !slices.Contains(names, "onnxruntime") ||
		!slices.Contains(names, "ctranslate2") {
		t.Errorf("wheels %v, %d digests of the last", names, digests)
	}

	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	// stands in for python3, and is what it makes
	script := "#!/bin/sh\nif [ \"$2\" = venv ]; then mkdir -p \"$3/bin\"; cp \"$0\" \"$3/bin/python3\"; exit 0; fi\n" +
		"echo \"$@\" > '" + dir + "/said'; for last; do :; done; cp \"$last\" '" + dir + "/wheels'\n"
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	made := recipe{Name: "python", OS: runtime.GOOS, Arch: runtime.GOARCH, Requirements: "a==1 --hash=sha256:b\n"}
	for _, want := range []bool{true, false} {
		if got, err := made.make(t.Context(), filepath.Join(dir)); err != nil || got != want {
			t.Fatalf("made %v, %v, want %v", got, err, want)
		}
	}
	said, err := os.ReadFile(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"-m pip install", "--require-hashes", "--no-deps", "--only-binary=:all:"} {
		if !strings.Contains(string(said), option) {
			t.Errorf("pip was called with %q, without %s", said, option)
		}
	}
	if wheels, err := os.ReadFile(filepath.Join(dir, "wheels")); err != nil || string(wheels) != made.Requirements {
		t.Errorf("wheels %q, %v", wheels, err)
	}
	// other wheels, another environment
	made.Requirements += "c==2 --hash=sha256:d\n"
	if got, err := made.make(t.Context(), filepath.Join(dir)); err != nil || !got {
		t.Errorf("made %v, %v", got, err)
	}
	t.Setenv("PATH", t.TempDir())
	made.Requirements += "#\n"
	if _, err := made.make(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "needs python3 in PATH") {
		t.Errorf("without python3: %v", err)
	}
}
