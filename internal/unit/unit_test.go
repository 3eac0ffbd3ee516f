package unit

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	sizes := map[string]Bytes{"4GiB": 4 << 30, "4 GB": 4e9, "1.5MiB": 3 << 19, "1.2GiB": 1288490188, "0.0001kB": 0, "4096": 4096, "0": 0, " 2 kB ": 2000, "2KB": 2000, "1B": 1, "1e3B": 1000, "2E": -1,
		"": -1, "GiB": -1, "-1": -1, "1.5": -1, "4 GiBs": -1, "9e18": 9e18, "1e19": -1, "nan": -1, "inf": -1, "1 gib": -1, strings.Repeat("1", 100): -1}
	for s, want := range sizes {
		if got, err := ParseBytes(s); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	times := map[string]Seconds{"60s": 60, "1.5 ms": 1.5e-3, "250us": 250e-6, "3µs": 3e-6, "10m": 600, "1h30m": 5400, "1h 30m 5s": 5405, "0": 0, "2e-3s": 2e-3, "7ns": 7e-9,
		"": -1, "60": -1, "5x": -1, "m": -1, "1m1h": -1, "1s1s": -1, "-1s": -1, "1h-5m": -1, "nans": -1}
	for s, want := range times {
		got, err := ParseSeconds(s)
		if (err != nil) != (want < 0) || err == nil && math.Abs(float64(got-want)) > 1e-15 {
			t.Errorf("ParseSeconds(%q) = %g, %v, want %g", s, float64(got), err, float64(want))
		}
	}
	if r, err := ParseByteRate("51.2 GB/s"); err != nil || r != 51.2e9 {
		t.Errorf("byte rate: %v, %v", float64(r), err)
	}
	for _, s := range []string{"1.2 TFLOP/s", "1.2TFLOPS", "1.2 TOPS", "1.2TOP/s"} {
		if r, err := ParseFlopRate(s); err != nil || r != 1.2e12 {
			t.Errorf("flop rate %q: %v, %v", s, float64(r), err)
		}
	}
	if r, err := ParseFlops("3 GFLOP"); err != nil || r != 3e9 {
		t.Errorf("flops: %v, %v", float64(r), err)
	}
	for _, s := range []string{"5", "GB/s", "5 GB", "-5 GB/s", "5 GB/h"} {
		if _, err := ParseByteRate(s); err == nil {
			t.Errorf("ParseByteRate(%q) accepted", s)
		}
		if _, err := ParseFlopRate(s); err == nil {
			t.Errorf("ParseFlopRate(%q) accepted", s)
		}
	}
}

func TestPrint(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Bytes(4 << 30).String(), "4 GiB"}, {Bytes(1500).String(), "1.46 KiB"}, {Bytes(0).String(), "0 B"}, {Bytes(1023).String(), "1023 B"}, {Bytes(-2048).String(), "-2 KiB"},
		{Seconds(1.5e-3).String(), "1.5 ms"}, {Seconds(60).String(), "60 s"}, {Seconds(125).String(), "2 m 5 s"}, {Seconds(5400).String(), "90 m 0 s"}, {Seconds(9000).String(), "2 h 30 m"},
		{Seconds(999.9e-6).String(), "1 ms"}, {Seconds(7e-9).String(), "7 ns"}, {Seconds(0).String(), "0 s"}, {Seconds(123.456e-6).String(), "123 us"},
		{FlopRate(1.2e12).String(), "1.2 TFLOP/s"}, {Flops(12.34e9).String(), "12.3 GFLOP"}, {ByteRate(51.2e9).String(), "51.2 GB/s"}, {ByteRate(12).String(), "12 B/s"}, {ByteRate(999.9e6).String(), "1 GB/s"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
	if d := Seconds(1.5).Duration(); d != 1500*time.Millisecond {
		t.Errorf("duration %v", d)
	}
	if d := Seconds(1e300).Duration(); d != math.MaxInt64 {
		t.Errorf("huge duration %v", d)
	}
}

// TestTextIsExact writes every kind of value and reads the same back.
func TestTextIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<53).Draw(t, "bytes"))
		text, _ := b.MarshalText()
		var b2 Bytes
		if err := b2.UnmarshalText(text); err != nil || b2 != b {
			t.Fatalf("%d -> %s -> %d, %v", int64(b), text, int64(b2), err)
		}
		x := rapid.Float64Range(0, 1e18).Draw(t, "x")
		s, r, f, o := Seconds(x), ByteRate(x), FlopRate(x), Flops(x)
		var s2 Seconds
		var r2 ByteRate
		var f2 FlopRate
		var o2 Flops
		text, _ = s.MarshalText()
		if err := s2.UnmarshalText(text); err != nil || s2 != s {
			t.Fatalf("%g -> %s -> %g, %v", x, text, float64(s2), err)
		}
		text, _ = r.MarshalText()
		if err := r2.UnmarshalText(text); err != nil || r2 != r {
			t.Fatalf("%g -> %s -> %g, %v", x, text, float64(r2), err)
		}
		text, _ = f.MarshalText()
		if err := f2.UnmarshalText(text); err != nil || f2 != f {
			t.Fatalf("%g -> %s -> %g, %v", x, text, float64(f2), err)
		}
		text, _ = o.MarshalText()
		if err := o2.UnmarshalText(text); err != nil || o2 != o {
			t.Fatalf("%g -> %s -> %g, %v", x, text, float64(o2), err)
		}
	})
	if text, _ := Seconds(250e-6).MarshalText(); string(text) != "250us" {
		t.Errorf("got %s", text)
	}
	if text, _ := ByteRate(51.2e9).MarshalText(); string(text) != "51.2GB/s" {
		t.Errorf("got %s", text)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"4GiB", "1h30m", "51.2 GB/s", "1e3TFLOPS", "-0", "1.5 ms", "3µs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := ParseBytes(s); err == nil && b < 0 {
			t.Errorf("%q is %d bytes", s, b)
		}
		if x, err := ParseSeconds(s); err == nil && !(x >= 0) {
			t.Errorf("%q is %g seconds", s, float64(x))
		}
		if x, err := ParseByteRate(s); err == nil && !(x >= 0) {
			t.Errorf("%q is %g bytes per second", s, float64(x))
		}
		if x, err := ParseFlopRate(s); err == nil && !(x >= 0) {
			t.Errorf("%q is %g", s, float64(x))
		}
	})
}
