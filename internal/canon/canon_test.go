package canon

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type inner struct {
	Name string    `json:"name"`
	N    int64     `json:"n,omitempty"`
	F    float64   `json:"f,omitempty"`
	G    []float32 `json:"g,omitempty"`
}

type upper string

func (u upper) MarshalText() ([]byte, error) { return []byte(strings.ToUpper(string(u))), nil }
func (u *upper) UnmarshalText(b []byte) error {
	*u = upper(strings.ToLower(string(b)))
	if got, _ := u.MarshalText(); !bytes.Equal(got, b) {
		return strings.NewReader("").UnreadByte()
	}
	return nil
}

// Embedded has its keys written in the place where it is embedded.
type Embedded struct {
	Deep  int              `json:"deep,omitempty"`
	Lists map[string][]int `json:"lists"`
}

type document struct {
	A    string            `json:"a"`
	B    bool              `json:"b,omitempty"`
	In   inner             `json:"in"`
	List []inner           `json:"list,omitempty"`
	All  []int             `json:"all"`
	Pair *[2]int           `json:"pair,omitempty"`
	Set  *int              `json:"set,omitempty"`
	U    []upper           `json:"u,omitempty"`
	Map  map[string]string `json:"map,omitempty"`
	Embedded
	Low  int8  `json:"low,omitempty"`
	Last upper `json:"last"`
}

// judge compares Read with encoding/json: what is read encodes to the same bytes, and equals what that decodes.
func judge(t interface{ Fatalf(string, ...any) }, data []byte) bool {
	var got, want document
	if !Read(data, &got) {
		return false
	}
	again, err := json.Marshal(&got)
	if err != nil || !bytes.Equal(again, data) {
		t.Fatalf("read %q, and it encodes to %q (%v)", data, again, err)
	}
	if err := json.Unmarshal(data, &want); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: got %+v, encoding/json says %+v (%v)", data, got, want, err)
	}
	return true
}

func TestReadsWhatWasWritten(t *testing.T) {
	word := rapid.StringMatching(`[a-z0-9 _./:=-]{0,8}`)
	number := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-3, 3))
	item := rapid.Custom(func(t *rapid.T) inner {
		return inner{word.Draw(t, "name"), number.Draw(t, "n"), rapid.Float64().Draw(t, "f"), rapid.SliceOfN(rapid.Float32(), 0, 3).Draw(t, "g")}
	})
	rapid.Check(t, func(t *rapid.T) {
		d := document{A: word.Draw(t, "a"), B: rapid.Bool().Draw(t, "b"), In: item.Draw(t, "in"), Low: rapid.Int8().Draw(t, "low"), Last: upper(word.Draw(t, "last"))}
		d.List = rapid.SliceOfN(item, 0, 3).Draw(t, "list")
		d.All = rapid.SliceOfN(rapid.Int(), 0, 3).Draw(t, "all")
		d.Map = rapid.MapOfN(word, word, 0, 3).Draw(t, "map")
		d.Lists = rapid.MapOfN(word, rapid.SliceOfN(rapid.Int(), 1, 2), 0, 3).Draw(t, "lists")
		if d.All == nil {
			d.All = []int{}
		}
		if rapid.Bool().Draw(t, "pair") {
			d.Pair = &[2]int{rapid.Int().Draw(t, "p0"), 0}
		}
		if rapid.Bool().Draw(t, "set") {
			d.Set = new(int)
		}
		for range rapid.IntRange(0, 2).Draw(t, "words") {
			d.U = append(d.U, upper(word.Draw(t, "u")))
		}
		data, err := json.Marshal(&d)
		if err != nil {
			t.Fatal(err)
		}
		if !judge(t, data) {
			t.Fatalf("not read: %s", data)
		}
	})
}

const good = `{"a":"x","b":true,"in":{"name":"","n":-5,"f":1e-9},"list":[{"name":"q","g":[0.1,3]}],"all":[0,1],"pair":[1,2],"set":0,"u":["AB"],"map":{"a":"b","c":""},"deep":7,"lists":{"x":[1],"y":[]},"low":-128,"last":"Z"}`

func TestRefusesEverythingElse(t *testing.T) {
	if !judge(t, []byte(good)) {
		t.Fatal("the good document is refused")
	}
	for _, c := range []struct{ from, to string }{
		{`"b":true`, `"b":false`}, {`"b":true`, `"b": true`}, {`"b":true`, `"b":1`}, {`"n":-5`, `"n":0`}, {`"n":-5`, `"n":-05`}, {`"n":-5`, `"n":+5`},
		{`"n":-5`, `"n":-0`}, {`"n":-5`, `"n":5.0`}, {`"n":-5`, `"n":9223372036854775808`}, {`"n":-5`, `"n":`}, {`"n":-5`, `"n":-`}, {`1e-9`, `1e-09`}, {`1e-9`, `0.000000001`},
		{`1e-9`, `NaN`}, {`1e-9`, `1e999`}, {`"a":"x",`, ``}, {`"a":"x"`, `"a":null`}, {`"all":[0,1]`, `"all":null`}, {`[0,1]`, `[0,1,]`}, {`[0,1]`, `[0 ,1]`},
		{`[1,2]`, `[1]`}, {`[1,2]`, `[1,2,3]`}, {`[1,2]`, `null`}, {`"set":0`, `"set":null`}, {`["AB"]`, `["Ab"]`}, {`["AB"]`, `[]`}, {`-128`, `-129`}, {`"x"`, `"\u0078"`},
		{`"x"`, `"<"`}, {`"x"`, "\"\xff\""}, {`"x"`, "\"\n\""}, {`"a":"x","b":true`, `"b":true,"a":"x"`}, {`"a":"x"`, `"a":"x","a":"x"`}, {`"a":"x"`, `"A":"x"`},
		{`"a":"x"`, `"new":1,"a":"x"`}, {`"last":"Z"}`, `"last":"Z"`}, {`"last":"Z"}`, `"last":"Z"}}`}, {`"last":"Z"}`, `"last":"Z"} `}, {`"last":"Z"}`, `"last":"Z","more":1}`},
		{`"map":{"a":"b","c":""}`, `"map":{"c":"","a":"b"}`}, {`"map":{"a":"b","c":""}`, `"map":{"a":"b","a":"c"}`}, {`"map":{"a":"b","c":""}`, `"map":{}`},
		{`"map":{"a":"b","c":""}`, `"map":{"a":"b",}`}, {`"map":{"a":"b","c":""}`, `"map":{"a":1}`}, {`"map":{"a":"b","c":""}`, `"map":null`}, {`"deep":7`, `"deep":0`},
	} {
		if !strings.Contains(good, c.from) {
			t.Fatalf("nothing to replace: %s", c.from)
		}
		if judge(t, []byte(strings.Replace(good, c.from, c.to, 1))) {
			t.Errorf("%s as %s is accepted", c.from, c.to)
		}
	}
	for i := range good {
		if judge(t, []byte(good[:i])) {
			t.Errorf("cut after %d bytes, it is accepted", i)
		}
	}
}

func TestUnsuitableTypesAreNeverRead(t *testing.T) {
	for _, v := range []any{
		new(map[string]int), new(any), new(uint), new(json.Number), new(json.RawMessage), new([]byte), new(chan int),
		new(struct{ A int }), new(struct {
			A int `json:"a,string"`
		}),
	} {
		for _, data := range []string{"{}", "0", `""`, "null", `{"a":1}`, `{"A":1}`, "[]", `"AA=="`} {
			if v := v; Read([]byte(data), v) {
				if again, err := json.Marshal(v); err != nil || string(again) != data {
					t.Errorf("%T is read from %s, and encodes to %s (%v)", v, data, again, err)
				}
			}
		}
	}
	if f := math.Inf(1); Read([]byte("+Inf"), &f) {
		t.Error("infinity is read")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(`{"a":"","in":{"name":""},"all":[],"last":""}`))
	f.Fuzz(func(t *testing.T, data []byte) { judge(t, data) })
}
