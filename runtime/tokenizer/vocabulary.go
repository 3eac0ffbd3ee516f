package tokenizer

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"math/bits"
)

// A vocabulary finds tokens by id and by text. All texts lie in one piece of memory, and the index holds only ids. So a
// vocabulary is a few large pieces of memory without pointers, which take little time to fill and to collect.
type vocabulary struct {
	texts  []byte
	ranges []textRange // by id
	count  int         // tokens
	index  hashIndex   // of ids by text
	seed   maphash.Seed
}

// A textRange says where a text lies in texts. That of an id without a token is empty.
type textRange struct{ from, to uint32 }

// usualBytes is about the average size of a token.
const usualBytes = 8

// reserve makes room for a number of tokens.
func (v *vocabulary) reserve(tokens int) {
	v.ranges = make([]textRange, 0, tokens)
	v.texts = make([]byte, 0, usualBytes*tokens)
}

// text returns the text of a token. It is empty for an id without one.
func (v *vocabulary) text(id int32) []byte {
	if id < 0 || int(id) >= len(v.ranges) {
		return nil
	}
	at := v.ranges[id]
	return v.texts[at.from:at.to]
}

// id returns the id of a token by its text, -1 if there is none.
func (v *vocabulary) id(text []byte) int32 {
	_, id := v.find(maphash.Bytes(v.seed, text), text)
	return id
}

// find returns the slot and the id of a token by its text and the hash of that; see hashIndex.
func (v *vocabulary) find(hash uint64, text []byte) (slot int, id int32) {
	return v.index.find(hash, func(id int32) bool { return string(v.text(id)) == string(text) })
}

// add adds a token, whose id must be free. It is found by its text once the index is made.
func (v *vocabulary) add(id int32, text []byte) {
	for int(id) >= len(v.ranges) {
		v.ranges = append(v.ranges, textRange{})
	}
	from := len(v.texts)
	v.texts = append(v.texts, text...)
	v.ranges[id] = textRange{uint32(from), uint32(len(v.texts))}
	v.count++
}

// joins reports whether the text of a token is that of two others together.
func (v *vocabulary) joins(id int32, left, right []byte) bool {
	text := v.text(id)
	return len(text) == len(left)+len(right) && bytes.HasPrefix(text, left) && bytes.HasSuffix(text, right)
}

// makeIndex makes tokens known by their texts. It is called once, when the number of tokens is known.
func (v *vocabulary) makeIndex() error {
	v.seed = maphash.MakeSeed()
	v.index = newHashIndex(v.count)
	for i := range v.ranges {
		text := v.text(int32(i))
		if len(text) == 0 {
			continue
		}
		hash := maphash.Bytes(v.seed, text)
		slot, other := v.find(hash, text)
		if other >= 0 {
			return fmt.Errorf("token %q twice", clip(string(text)))
		}
		v.index.put(slot, hash, int32(i))
	}
	return nil
}

// A merge is a pair of tokens and what it becomes.
type merge struct{ left, right, id int32 }

// A mergeTable holds the merges of a model in the order in which they were learned. The place of a merge is its rank.
type mergeTable struct {
	list  []merge
	index hashIndex // of ranks by pair
	seed  [2]uint64
}

// newMergeTable makes merges known by their pairs. Of two merges of one pair the later counts, as in the reference.
func newMergeTable(list []merge) mergeTable {
	out := mergeTable{list: list, index: newHashIndex(len(list))}
	seed := maphash.MakeSeed()
	out.seed = [2]uint64{maphash.String(seed, "pair"), maphash.String(seed, "factor")}
	for rank, pair := range list {
		hash := out.hash(pair.left, pair.right)
		slot, _ := out.index.find(hash, out.is(pair.left, pair.right))
		out.index.put(slot, hash, int32(rank))
	}
	return out
}

// find returns the rank of a pair and what it becomes; ok is false if it is not merged.
func (t *mergeTable) find(left, right int32) (rank, id int32, ok bool) {
	_, rank = t.index.find(t.hash(left, right), t.is(left, right))
	if rank < 0 {
		return 0, 0, false
	}
	return rank, t.list[rank].id, true
}

// is returns the function that reports whether a rank is that of a pair.
func (t *mergeTable) is(left, right int32) func(rank int32) bool {
	return func(rank int32) bool {
		pair := &t.list[rank]
		return pair.left == left && pair.right == right
	}
}

// hash multiplies a pair by a random number and folds the product, as wyhash does. The numbers are random so that no
// file can be written whose pairs have equal hashes.
func (t *mergeTable) hash(left, right int32) uint64 {
	high, low := bits.Mul64((uint64(uint32(left))<<32|uint64(uint32(right)))^t.seed[0], t.seed[1]|1)
	return high ^ low
}

// A hashIndex finds a number by the hash of its key. It is a hash table with open addressing and linear probing, whose
// keys lie elsewhere. A slot holds the number plus one in its lower bits, and a tag of the hash in its upper ones. Tags
// tell most keys apart, so that hardly any wrong key is looked at. An empty slot is 0.
type hashIndex struct{ slots []uint32 }

// numberBits is how many bits of a slot hold the number plus one. Ids and ranks have up to 21 bits.
const numberBits = 22

// newHashIndex makes an index for a number of keys. At least a third of the slots stays empty, so that searches are
// short.
func newHashIndex(keys int) hashIndex {
	return hashIndex{make([]uint32, 1<<bits.Len(uint(keys+keys/2)))}
}

// tag returns the bits of a hash that a slot holds.
func tag(hash uint64) uint32 { return uint32(hash>>32) &^ (1<<numberBits - 1) }

// find returns the slot and the number of a key, by its hash and a function that reports whether a number is that of
// the key. For a new key the number is -1, and the slot is the empty one where it belongs.
func (h hashIndex) find(hash uint64, is func(number int32) bool) (slot int, number int32) {
	mask, mark := len(h.slots)-1, tag(hash)
	for slot = int(hash) & mask; ; slot = (slot + 1) & mask {
		held := h.slots[slot]
		if held == 0 {
			return slot, -1
		}
		if held&^(1<<numberBits-1) != mark {
			continue
		}
		if number = int32(held&(1<<numberBits-1)) - 1; is(number) {
			return slot, number
		}
	}
}

// put writes a number to the slot that find returned for its key.
func (h hashIndex) put(slot int, hash uint64, number int32) {
	h.slots[slot] = tag(hash) | uint32(number+1)
}
