package tokenizer

import "strings"

// alphabet maps bytes to the characters that stand for them in a vocabulary: printable Latin-1
// characters for themselves, the others in order from U+0100.
var alphabet = func() (out [256]rune) {
	next := rune(256)
	for value := range out {
		char := rune(value)
		if char > ' ' && char < 0x7f || char > 0xa0 && char != 0xad {
			out[value] = char
			continue
		}
		out[value] = next
		next++
	}
	return out
}()

// byteOf is the inverse of alphabet.
var byteOf = func() map[rune]byte {
	out := map[rune]byte{}
	for value, char := range alphabet {
		out[char] = byte(value)
	}
	return out
}()

// inAlphabet writes the bytes of text in the alphabet.
func inAlphabet(text string) string {
	var out strings.Builder
	for i := range len(text) {
		out.WriteRune(alphabet[text[i]])
	}
	return out.String()
}

// appendBytes appends the bytes that a token in the alphabet stands for; one with other characters stands
// for itself.
func appendBytes(out []byte, token string) []byte {
	start := len(out)
	for _, char := range token {
		value, ok := byteOf[char]
		if !ok {
			return append(out[:start], token...)
		}
		out = append(out, value)
	}
	return out
}
