package kernel

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The package calls every generated function, so that none is generated in vain.
func TestGeneratedIsCalled(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}

	comments := regexp.MustCompile(`(?m)//.*$`)
	names := regexp.MustCompile(`\w+`)
	called := map[string]bool{}
	var generated []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(text, []byte("// Code generated")) {
			generated = append(generated, text...)
			continue
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, name := range names.FindAll(comments.ReplaceAll(text, nil), -1) {
			called[string(name)] = true
		}
	}

	functions := regexp.MustCompile(`(?m)^func (\w+)\(`).FindAllSubmatch(generated, -1)
	if len(functions) < 100 {
		t.Fatalf("found %d generated functions", len(functions))
	}
	for _, function := range functions {
		if name := string(function[1]); !called[name] {
			t.Errorf("nothing calls the generated %s", name)
		}
	}
}
