package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Bounds of a model; the largest published ones have 260,000 tokens and 600,000 merges.
const (
	maxVocab      = 1 << 20
	maxMerges     = 1 << 21
	maxTokenBytes = 1 << 12
)

// modelFields are those of the model part of a tokenizer.json beside its vocabulary and merges.
type modelFields struct {
	kind string // "BPE"; older files name none
	// the probability, in training, of leaving a merge out: only 0 is deterministic
	dropout *float64
	// token of what the vocabulary cannot spell, nil for none
	unk            *string
	prefix, suffix string
	// one unknown token for a run of them
	fuseUnk bool
	// spell unknown characters as tokens <0x00> to <0xFF>
	byteFallback bool
	// a word that is a token is that token, whatever its merges
	ignoreMerges bool
}

// A modelReader reads the model part of a tokenizer.json in one pass. Its fields come in any order. Merges are pairs of
// tokens, so those in front of the vocabulary are passed over, and read at the end.
type modelReader struct {
	*scanner
	fields    modelFields
	model     *bpe
	hasVocab  bool
	hasMerges bool
	later     *scanner // at merges in front of the vocabulary, else nil
	// Errors of vocabulary and merges, and fields that are not known, are reported last: another kind of model has
	// other fields, and is refused as such.
	failed, unknown error
}

// readModel reads the model part.
func readModel(s *scanner) (*bpe, error) {
	start := s.at
	model := &bpe{cuts: true, unk: -1, merges: newMergeTable(nil), cache: map[string][]int32{}}
	reader := &modelReader{scanner: s, model: model}
	if err := s.members(reader.member); err != nil {
		return nil, err
	}
	if err := reader.refuse(part(s.data[start:s.at])); err != nil {
		return nil, err
	}
	if reader.later != nil {
		if err := model.readMerges(reader.later); err != nil {
			return nil, fmt.Errorf("merges: %w", err)
		}
	}
	reader.finish()
	return model, nil
}

// member reads the value of one field.
func (r *modelReader) member(key []byte) error {
	switch string(key) {
	case "vocab":
		r.hasVocab = true
		return r.large("vocab", r.model.readTokens)
	case "merges":
		r.hasMerges = true
		if !r.hasVocab {
			r.later = &scanner{data: r.data, at: r.at}
			return r.skip()
		}
		return r.large("merges", r.model.readMerges)
	}
	value, err := r.raw()
	if err != nil {
		return err
	}
	into := r.fields.byName()[string(key)]
	if into == nil || len(value) > maxPart {
		r.unknown = fmt.Errorf("unknown field %q", clip(string(key)))
		return nil
	}
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("%s: %s", key, clip(err.Error()))
	}
	return nil
}

// large reads vocabulary or merges. It keeps the first error, and passes over what cannot be read.
func (r *modelReader) large(name string, read func(*scanner) error) error {
	start := *r.scanner
	if r.failed == nil {
		err := read(r.scanner)
		if err == nil {
			return nil
		}
		r.failed = fmt.Errorf("%s: %w", name, err)
	}
	*r.scanner = start
	return r.skip()
}

// byName returns where the value of each field belongs.
func (f *modelFields) byName() map[string]any {
	return map[string]any{
		"type": &f.kind, "dropout": &f.dropout, "unk_token": &f.unk, "continuing_subword_prefix": &f.prefix,
		"end_of_word_suffix": &f.suffix, "fuse_unk": &f.fuseUnk, "byte_fallback": &f.byteFallback,
		"ignore_merges": &f.ignoreMerges,
	}
}

// refuse refuses a model that would give other ids than those of the reference. raw is all of it.
func (r *modelReader) refuse(raw part) error {
	fields := &r.fields
	switch {
	case fields.kind != "BPE" && (fields.kind != "" || !r.hasMerges):
		return raw.unsupported("BPE")
	case r.unknown != nil:
		return r.unknown
	case fields.dropout != nil && *fields.dropout != 0:
		return errors.New("dropout is not supported")
	case fields.prefix != "" || fields.suffix != "":
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case !r.hasVocab:
		return errors.New("no vocab")
	}
	return r.failed
}

// finish sets what follows from the fields, once tokens and merges are known.
func (r *modelReader) finish() {
	model, fields := r.model, &r.fields
	model.fuseUnk, model.ignoreMerges = fields.fuseUnk, fields.ignoreMerges
	// A text may be cut at a metaspace if no token reaches across the cut, and no character beside it can vanish.
	if fields.unk != nil {
		unk := *fields.unk
		if model.unk = model.id([]byte(unk)); model.unk < 0 {
			model.unkMissing = unk
		}
		apart := !strings.HasPrefix(unk, metaspace) && !strings.HasSuffix(unk, metaspace)
		model.cuts = model.cuts && model.unk >= 0 && apart
	}
	complete := fields.byteFallback
	if fields.byteFallback {
		model.byteFallback = new([256]int32)
		for value := range model.byteFallback {
			model.byteFallback[value] = model.id(fmt.Appendf(nil, "<0x%02X>", value))
			complete = complete && model.byteFallback[value] >= 0
		}
	}
	known := model.id([]byte(metaspace)) >= 0
	model.cuts = model.cuts && known && !model.ignoreMerges && (complete || model.unk >= 0)
	for value, char := range alphabet {
		model.bytes[value] = model.id([]byte(string(char)))
	}
}

// readTokens reads the object of tokens and their ids, which need be neither in order nor without gaps.
func (t *bpe) readTokens(s *scanner) error {
	t.reserve(min(bytes.Count(s.data[s.at:], []byte{':'}), maxVocab))
	err := s.object(func(token []byte) error {
		id, err := s.whole()
		switch {
		case err != nil:
			return fmt.Errorf("token %q: %w", clip(string(token)), err)
		case id < 0 || id >= maxVocab:
			return fmt.Errorf("token %q: id %d, want 0 to %d", clip(string(token)), id, maxVocab-1)
		case len(token) == 0 || len(token) > maxTokenBytes:
			return fmt.Errorf("token %d has %d bytes, want 1 to %d", id, len(token), maxTokenBytes)
		case len(t.text(id)) > 0:
			return fmt.Errorf("id %d belongs to several tokens", id)
		}
		t.add(id, token)
		return nil
	})
	if err != nil {
		return err
	}
	return t.makeIndex()
}

// shortestMerge is the least size of a merge in a file, in bytes.
const shortestMerge = 6

// readMerges reads the list of pairs, those that were learned first first.
func (t *bpe) readMerges(s *scanner) error {
	list := make([]merge, 0, min(t.count, len(s.data)/shortestMerge))
	next, joined := int32(0), []byte(nil)
	err := s.list(func() error {
		if len(list) == maxMerges {
			return fmt.Errorf("more than %d", maxMerges)
		}
		left, right, err := readPair(s)
		if err != nil {
			return fmt.Errorf("merge %d: %w", len(list), err)
		}
		if left == nil {
			return nil
		}
		pair := merge{t.id(left), t.id(right), next}
		// Most files list tokens in the order of the merges that make them.
		if !t.joins(next, left, right) {
			joined = append(append(joined[:0], left...), right...)
			pair.id = t.id(joined)
		}
		if pair.left < 0 || pair.right < 0 || pair.id < 0 {
			return fmt.Errorf(
				"%q and %q do not merge to tokens of the vocabulary", clip(string(left)), clip(string(right)))
		}
		// Where a merge joins across a metaspace, a word may depend on what is before its space.
		if bytes.HasPrefix(right, []byte(metaspace)) && !bytes.HasSuffix(left, []byte(metaspace)) {
			t.cuts = false
		}
		next = pair.id + 1
		list = append(list, pair)
		return nil
	})
	if err == nil {
		t.merges = newMergeTable(list)
	}
	return err
}

// versionLine begins the first line of files of merges, which some documents have among the merges.
const versionLine = "#version"

// readPair reads a pair that is written "a b" or ["a","b"]. A text that begins as versionLine is no merge, as in the
// reference: it gives nil.
func readPair(s *scanner) (left, right []byte, err error) {
	if s.next() == '[' {
		var parts [2][]byte
		count := 0
		err = s.list(func() (err error) {
			if count == len(parts) {
				return errors.New("more than 2 parts")
			}
			parts[count], err = s.text()
			count++
			return err
		})
		left, right = parts[0], parts[1]
	} else {
		var text []byte
		text, err = s.text()
		if err == nil && bytes.HasPrefix(text, []byte(versionLine)) {
			return nil, nil, nil
		}
		left, right, _ = bytes.Cut(text, []byte{' '})
		if bytes.IndexByte(right, ' ') >= 0 {
			right = nil
		}
	}
	switch {
	case err != nil:
		return nil, nil, err
	case len(left) == 0 || len(right) == 0:
		return nil, nil, errors.New(`want two tokens: "a b" or ["a","b"]`)
	case len(left)+len(right) > 2*maxTokenBytes:
		return nil, nil, fmt.Errorf("%d bytes, want at most %d", len(left)+len(right), 2*maxTokenBytes)
	}
	return left, right, nil
}
