package source

import "testing"

func TestWeakest(t *testing.T) {
	for i, stronger := range All {
		for _, weaker := range All[i:] {
			for _, list := range [][]Source{{stronger, weaker}, {weaker, "", stronger}} {
				if got := Weakest(list...); got != weaker {
					t.Errorf("the weakest of %q is %q", list, got)
				}
			}
		}
	}
	if got := Weakest("", ""); got != "" {
		t.Errorf("of nothing %q", got)
	}
	if Source("guessed").Valid() || Source("").Valid() {
		t.Error("an unknown source is valid")
	}
}
