// Package strictjson knows what encoding/json lets pass that is a mistake in a line or a body. Files with a schema are
// read by internal/decode, which is as strict; this package links no YAML.
package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// OnceEach refuses a JSON object that has a key twice, because nobody knows which of the values was meant: encoding/json
// takes the last one silently. Objects inside are not looked at, and what is no object passes.
func OnceEach(object []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('{') {
		return err
	}
	seen := map[string]bool{}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		// encoding/json takes "Prompt" for "prompt", too, as well as the two letters beyond ASCII that have a form in
		// ASCII: the long s and the sign for Kelvin.
		name := strings.ToUpper(strings.ToLower(fmt.Sprint(key)))
		if seen[name] {
			return fmt.Errorf("key %q twice", key)
		}
		seen[name] = true
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return err
		}
	}
	return nil
}
