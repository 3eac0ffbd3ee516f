package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// declaredToken is a token as a tokenizer_config.json has it: a text, or an object with the fields of an added token.
type declaredToken struct {
	addedToken
	plain  bool // written as a text alone
	unsaid bool // the file does not say whether it is Normalized, which means that it is unless it is special
}

// UnmarshalJSON reads both forms. In some files null or false says that there is no such token.
func (d *declaredToken) UnmarshalJSON(data []byte) error {
	*d = declaredToken{}
	if bytes.Equal(data, []byte("null")) || bytes.Equal(data, []byte("false")) {
		return nil
	}
	if len(data) == 0 || data[0] != '{' {
		d.plain, d.Special = true, true
		return json.Unmarshal(data, &d.Content)
	}
	var fields struct {
		Content                 string
		SingleWord              bool `json:"single_word"`
		LStrip, RStrip, Special bool
		Normalized              *bool
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	d.addedToken = addedToken{Content: fields.Content, SingleWord: fields.SingleWord, LStrip: fields.LStrip,
		RStrip: fields.RStrip, Special: fields.Special, Normalized: !fields.Special}
	if d.unsaid = fields.Normalized == nil; !d.unsaid {
		d.Normalized = *fields.Normalized
	}
	return nil
}

// declared are the tokens that a tokenizer_config.json asks for beside those of the tokenizer.json.
type declared struct {
	Decoder map[string]declaredToken `json:"added_tokens_decoder"` // by id, as text
	Extra   json.RawMessage          `json:"extra_special_tokens"` // a list, or names and tokens
	Older   []declaredToken          `json:"additional_special_tokens"`
}

// ordered returns the tokens of added_tokens_decoder in the order of their ids.
func (d *declared) ordered() ([]declaredToken, error) {
	number := func(key string) int {
		id, _ := strconv.Atoi(key)
		return id
	}
	keys := slices.SortedFunc(maps.Keys(d.Decoder), func(left, right string) int {
		return cmp.Or(cmp.Compare(number(left), number(right)), cmp.Compare(left, right))
	})
	out := make([]declaredToken, 0, len(keys))
	for _, key := range keys {
		if _, err := strconv.ParseInt(key, 10, 32); err != nil {
			return nil, fmt.Errorf("added_tokens_decoder: id %q is not a number", clip(key))
		}
		out = append(out, d.Decoder[key])
	}
	return out, nil
}

// extras returns the special tokens beside those of the usual parts: those that a configuration gives parts of their
// own, and those without one. A list replaces that of the older key, named tokens stand beside it.
func (d *declared) extras() (parts, others []declaredToken, err error) {
	if part(d.Extra).isNull() {
		return nil, d.Older, nil
	}
	if err := json.Unmarshal(d.Extra, &others); err == nil {
		if len(others) == 0 {
			others = d.Older
		}
		return nil, others, nil
	}
	s := &scanner{data: d.Extra}
	err = s.members(func([]byte) error {
		var token declaredToken
		value, err := s.raw()
		if err == nil {
			err = json.Unmarshal(value, &token)
		}
		if token.Content != "" {
			parts = append(parts, token)
		}
		return err
	})
	if err != nil {
		return nil, nil, errors.New("extra_special_tokens: want a list or an object of tokens")
	}
	return parts, d.Older, nil
}

// A tokenList holds the added tokens while a configuration changes them.
type tokenList struct {
	tokens  []addedToken
	places  map[string]int  // in tokens, by text
	special map[string]bool // by text

	vocabulary *vocabulary
}

// put adds a token, or replaces the one with its text, which keeps its id. A text that was special once stays special
// for decoding, as in the reference.
func (l *tokenList) put(token addedToken) {
	if token.Content == "" {
		return
	}
	l.special[token.Content] = l.special[token.Content] || token.Special
	if at, known := l.places[token.Content]; known {
		token.ID = l.tokens[at].ID
		l.tokens[at] = token
		return
	}
	id := l.vocabulary.id([]byte(token.Content))
	if id < 0 {
		id = int32(l.vocabulary.count)
		for _, other := range l.tokens {
			id = max(id, other.ID+1)
		}
	}
	token.ID = id
	l.places[token.Content] = len(l.tokens)
	l.tokens = append(l.tokens, token)
}

// declare adds the tokens that a configuration names to those of the tokenizer.json. transformers looks for them in
// texts, and leaves special ones out of decoded texts. Files that were changed by hand name them in the configuration
// alone.
//
// Tokens of added_tokens_decoder replace those of the tokenizer.json. Tokens with a part to play (bos_token and the
// like) and other special tokens are added where neither has them. The result says which texts are special.
func (c *config) declare(added []addedToken, known *vocabulary) ([]addedToken, map[string]bool, error) {
	list := &tokenList{tokens: added, places: map[string]int{}, special: map[string]bool{}, vocabulary: known}
	for i, token := range added {
		list.places[token.Content] = i
		list.special[token.Content] = list.special[token.Content] || token.Special
	}
	decoder, err := c.ordered()
	if err != nil {
		return nil, nil, err
	}
	parts, extras, err := c.extras()
	if err != nil {
		return nil, nil, err
	}
	named := append(c.named(), parts...)
	for _, token := range decoder {
		plays := func(other declaredToken) bool { return other.Content == token.Content }
		token.Special = token.Special || slices.ContainsFunc(named, plays)
		list.put(token.addedToken)
	}
	// Of a token that is named twice, the last name counts.
	already := maps.Clone(list.places)
	for i, token := range slices.Concat(named, extras) {
		if _, added := already[token.Content]; added {
			// One with a part is left out of decoded text, whatever the tokenizer.json says of it, unless the
			// configuration lists all tokens.
			if i < len(named) && c.Decoder == nil {
				list.special[token.Content] = true
			}
			continue
		}
		if i < len(named) {
			token.Special, token.Normalized = true, token.Normalized && !token.unsaid
		}
		list.put(token.addedToken)
	}
	if err := checkAdded(list.tokens[len(added):]); err != nil {
		return nil, nil, err
	}
	return list.tokens, list.special, nil
}

// checkAdded bounds the texts of tokens that a configuration adds.
func checkAdded(tokens []addedToken) error {
	if len(tokens) > maxAdded {
		return fmt.Errorf("more than %d added tokens", maxAdded)
	}
	for _, token := range tokens {
		if len(token.Content) > maxAddedBytes {
			return fmt.Errorf(
				"token %q: %d bytes, want at most %d", clip(token.Content), len(token.Content), maxAddedBytes)
		}
	}
	return nil
}

// named returns the tokens with a part to play that the configuration has, in the order of the reference.
func (c *config) named() []declaredToken {
	var out []declaredToken
	for _, token := range []declaredToken{c.BOS, c.EOS, c.UNK, c.SEP, c.PAD, c.CLS, c.MASK} {
		if token.Content != "" {
			out = append(out, token)
		}
	}
	return out
}
