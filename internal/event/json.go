package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// maxDepth bounds the nesting of one member's value. No event needs it; it stands well below
// the 10,000 levels at which encoding/json gives up by itself.
const maxDepth = 1000

// object is a JSON object split into its members, in their order and with duplicates.
// encoding/json offers no type that keeps the order, the exact case of the names and the place
// of duplicates at once.
type object []member

type member struct {
	name  string
	value []byte // as written, a slice of the document
}

// get returns the value of the last member of that name, nil if there is none or it is null.
func (o object) get(name string) []byte {
	for _, m := range slices.Backward(o) {
		if m.name == name {
			if m.value[0] == 'n' {
				return nil
			}
			return m.value
		}
	}
	return nil
}

// parseObject splits the JSON object that data holds. The error is a *Fault.
func parseObject(data []byte) (object, error) {
	if err := checkJSON(data); err != nil {
		return nil, err
	}
	return splitObject(data)
}

// checkJSON returns a *Fault unless data is one JSON value and nothing else.
func checkJSON(data []byte) error {
	if json.Valid(data) {
		return nil
	}
	var value json.RawMessage
	err := json.Unmarshal(data, &value)
	detail := "the body is not valid JSON"
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		detail = fmt.Sprintf("%s: %v at byte %d", detail, err, syntax.Offset)
	}
	return NewFault(ReasonBadJSON, detail, err)
}

// splitObject splits a valid JSON object, blanks around it allowed. The error is a *Fault.
func splitObject(data []byte) (object, error) {
	members := make(object, 0, 8)
	i := skipBlanks(data, bytes.IndexByte(data, '{')+1)
	for data[i] != '}' {
		nameEnd := stringEnd(data, i)
		start := skipBlanks(data, skipBlanks(data, nameEnd)+len(":"))
		end, ok := valueEnd(data, start)
		if !ok {
			return nil, tooDeep()
		}
		members = append(members, member{unquote(data[i:nameEnd]), data[start:end]})
		if i = skipBlanks(data, end); data[i] == ',' {
			i = skipBlanks(data, i+1)
		}
	}
	return members, nil
}

// splitArray splits a valid JSON array into its elements, each as written. The error is a *Fault.
func splitArray(data []byte) ([][]byte, error) {
	var elements [][]byte
	i := skipBlanks(data, bytes.IndexByte(data, '[')+1)
	for data[i] != ']' {
		end, ok := valueEnd(data, i)
		if !ok {
			return nil, tooDeep()
		}
		elements = append(elements, data[i:end])
		if i = skipBlanks(data, end); data[i] == ',' {
			i = skipBlanks(data, i+1)
		}
	}
	return elements, nil
}

func tooDeep() error {
	return NewFault(ReasonBadJSON, fmt.Sprintf("the body is nested deeper than %d levels", maxDepth), nil)
}

func skipBlanks(data []byte, i int) int {
	for isBlank(data[i]) {
		i++
	}
	return i
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// stringEnd returns the place after the string that starts at i.
func stringEnd(data []byte, i int) int {
	for i++; data[i] != '"'; i++ {
		if data[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// valueEnd returns the place after the value, of a member or an element, that starts at i; ok is
// false if the value is nested too deep.
func valueEnd(data []byte, i int) (end int, ok bool) {
	for depth := 0; ; {
		switch data[i] {
		case '"':
			i = stringEnd(data, i)
		case '{', '[':
			if depth++; depth > maxDepth {
				return 0, false
			}
			i++
		case '}', ']':
			depth--
			i++
		default:
			i++
		}
		if c := data[i]; depth == 0 && (c == ',' || c == '}' || c == ']' || isBlank(c)) {
			return i, true
		}
	}
}

// unquote returns what a valid JSON string stands for, given with its quotes. A surrogate
// without its partner becomes U+FFFD.
func unquote(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return string(quoted) // unreachable: the document was found valid
	}
	return s
}

// show returns the beginning of a JSON value as written, for a fault.
func show(value []byte) string {
	s := cut(string(value), maxExcerptBytes)
	if len(s) < len(value) {
		s += mark
	}
	return s
}
