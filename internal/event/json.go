package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/tidwall/gjson"
)

// object is a JSON object split into its members, in their order and with duplicates.
type object []member

type member struct {
	name  string // may be part of the document
	value []byte // as written, a slice of the document
}

// get returns the value of the last member with that name, nil if there is none or it is null.
func (o object) get(name string) []byte {
	for _, m := range slices.Backward(o) {
		if m.name == name {
			if absent(m.value) {
				return nil
			}
			return m.value
		}
	}
	return nil
}

// checkJSON returns a *Fault unless data is one JSON value and nothing else.
func checkJSON(data []byte) *Fault {
	if json.Valid(data) {
		return nil
	}
	var value json.RawMessage
	err := json.Unmarshal(data, &value)
	detail := "the body is not valid JSON"
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		detail = fmt.Sprintf("%s: %v at byte %d", detail, err, syntax.Offset)
	}
	return NewFault(ReasonBadJSON, detail)
}

// parse reads a JSON value without copying it: otherwise each level of a body would copy everything below it. Names and texts without
// escapes share the memory of data.
func parse(data []byte) gjson.Result {
	return gjson.Parse(unsafe.String(unsafe.SliceData(data), len(data))) //nolint:gosec // nobody changes a body
}

// splitObject splits a JSON object. For invalid JSON it returns the members that it recognizes.
func splitObject(data []byte) object {
	const usual, shortest = 8, len(`"":0,`) // number of members, bytes of one
	members := make(object, 0, min(usual, len(data)/shortest))
	parse(data).ForEach(func(name, value gjson.Result) bool {
		members = append(members, member{name.Str, data[value.Index : value.Index+len(value.Raw)]})
		return true
	})
	return members
}

// SplitArray returns the elements of a JSON array, each as written. They share the memory of data. The fault has ReasonBadJSON.
func SplitArray(data []byte) ([][]byte, *Fault) {
	if fault := checkJSON(data); fault != nil {
		return nil, fault
	}
	if data = bytes.TrimLeft(data, " \t\r\n"); data[0] != '[' {
		return nil, NewFault(ReasonBadJSON, "the body is not a JSON array")
	}
	return splitArray(data), nil
}

// splitArray splits a JSON array into its elements, each as written.
func splitArray(data []byte) [][]byte {
	var elements [][]byte
	parse(data).ForEach(func(_, value gjson.Result) bool {
		elements = append(elements, data[value.Index:value.Index+len(value.Raw)])
		return true
	})
	return elements
}

// unquote returns the value of a JSON string with its quotes. A surrogate without its partner becomes U+FFFD.
func unquote(quoted []byte) string { return gjson.ParseBytes(quoted).Str }

// show returns the beginning of a JSON value for a fault.
func show(value []byte) string { return shortened(string(value), maxExcerptBytes) }
