package strictjson

import (
	"strings"
	"testing"
)

func TestOnceEach(t *testing.T) {
	for _, good := range []string{`{}`, `{"a":1,"b":{"a":1}}`, `{"a":{"b":1,"b":2}}`, `[1]`, `3`, `"a"`, `null`} {
		if err := OnceEach([]byte(good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		`{"a":1,"b":2,"a":1}`: `key "a" twice`, `{"a":1,"A":2}`: `key "A" twice`, `{"a":1,"\u0061":2}`: `key "a" twice`,
		`{"s":1,"\u017f":2}`: `key "ſ" twice`, `{"\u212a":1,"k":2}`: `key "k" twice`, // letters that fold to s and k
		`{"a":1,`: "EOF", ``: "EOF",
	} {
		if err := OnceEach([]byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", bad, err, want)
		}
	}
}
