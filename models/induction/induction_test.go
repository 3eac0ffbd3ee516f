package induction

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

// words are a text in which each of a few tokens is mostly followed by the next one.
func words(count, vocab int) []int32 {
	random := rand.New(rand.NewPCG(1, 2))
	ids := make([]int32, count)
	for i := range ids {
		ids[i] = int32(random.IntN(vocab))
		if i > 0 && random.IntN(4) > 0 {
			ids[i] = (ids[i-1] + 1) % int32(vocab)
		}
	}
	return ids
}

// Equal inputs give equal bytes, another seed others, and every tensor is there once.
func TestBuild(t *testing.T) {
	ids := words(500, 40)
	var files [][]byte
	for _, seed := range []uint64{7, 7, 8} {
		tensors, err := Build(ids, 40, seed)
		if err != nil {
			t.Fatal(err)
		}
		if len(tensors) != 3+9*layers {
			t.Errorf("%d tensors, want %d", len(tensors), 3+9*layers)
		}
		for name, tensor := range tensors {
			for i, value := range tensor.Values {
				if value-value != 0 {
					t.Fatalf("%s[%d] is %v", name, i, value)
				}
			}
		}
		dir := t.TempDir()
		if err := Write(dir, tensors, Config(40, 1, 2)); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, data)
	}
	if !reflect.DeepEqual(files[0], files[1]) || reflect.DeepEqual(files[0], files[2]) {
		t.Error("the seed does not decide the bytes")
	}
	for _, test := range []struct {
		ids   []int32
		vocab int
	}{{ids, 1}, {ids, MaxVocab + 1}, {ids, 39}, {[]int32{1}, 40}, {[]int32{1, -1}, 40}} {
		if _, err := Build(test.ids, test.vocab, 7); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%d tokens, vocabulary %d: %v", len(test.ids), test.vocab, err)
		}
	}
}

// Strict heads attend to the position that they are for, and no other within the context comes near.
func TestStrictPositions(t *testing.T) {
	score := func(distance float64) float64 {
		sum := 0.0
		for pair, sharpness := range strict {
			sum += sharpness * math.Cos(distance*frequency(pair))
		}
		return sum
	}
	for distance := 1.; distance < MaxContext; distance++ {
		if gap := score(0) - score(distance); gap < 15 {
			t.Errorf("a position %v away scores only %.2f less, want 15", distance, gap)
		}
	}
	if turn := MaxContext * frequency(firstStill); turn > 0.06 {
		t.Errorf("elements that compare codes turn by %.3f in the context, want 0.06 at most", turn)
	}
}

// Of full rank, the factors' product is the gains.
func TestFactors(t *testing.T) {
	const vocab = 30
	counts := countPairs(words(2000, vocab), vocab)
	left, right := counts.factors(vocab, rand.New(rand.NewPCG(1, 1)))
	for token := range vocab {
		for next := range vocab {
			want := counts.gain(token, next) / counts.weight(token) / counts.weight(next)
			if got := dot(left.row(token), right.row(next)); math.Abs(got-want) > 1e-9 {
				t.Fatalf("gain of %d behind %d: %v, want %v", next, token, got, want)
			}
		}
	}
	// a text of one pair has one direction
	counts = countPairs([]int32{3, 4}, vocab)
	left, right = counts.factors(5, rand.New(rand.NewPCG(1, 1)))
	want := counts.gain(3, 4) / counts.weight(3) / counts.weight(4)
	if got := dot(left.row(3), right.row(4)); math.Abs(got-want) > 1e-9 {
		t.Errorf("one pair: %v, want %v", got, want)
	}
}
