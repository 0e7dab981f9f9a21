package event

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func parseObject(data []byte) (object, error) {
	c, fault := typedContent(data, "")
	if fault != nil {
		return nil, fault
	}
	return c.members, nil
}

func TestParseObjectKeepsOrderAndDuplicates(t *testing.T) {
	t.Parallel()
	got := testkit.Must(parseObject([]byte(" {\t\"b\" :1,\r\n\"a\":\"x\\\"},{\" , \"b\":[{\"c\":\"]\"}, 2 ] ,\"\\u0061\" :null,\"\":-1e2} ")))(t)
	want := []struct{ name, value string }{
		{"b", "1"}, {"a", `"x\"},{"`}, {"b", `[{"c":"]"}, 2 ]`}, {"a", "null"}, {"", "-1e2"},
	}
	testkit.Require(t, len(got) == len(want), "got %d members, want %d", len(got), len(want))
	for i, m := range got {
		testkit.Equal(t, m.name, want[i].name, "name of member %d", i)
		testkit.Equal(t, string(m.value), want[i].value, "value of member %d", i)
	}
	testkit.Equal(t, string(got.get("b")), `[{"c":"]"}, 2 ]`, "the last b")
	testkit.Equal(t, string(got.get("a")), "", "a, which is null")
	testkit.Equal(t, string(got.get("B")), "", "B, a name in another case")
}

func TestSplitArray(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"[]":    nil,
		" [ ] ": nil,
		"[1]":   {"1"},
		"[ {\"a\":[1,2]} ,\t\"],\" , null,-1.5e3 ]": {`{"a":[1,2]}`, `"],"`, "null", "-1.5e3"},
		"[[],[[1]]]": {"[]", "[[1]]"},
	} {
		elements := splitArray([]byte(text))
		var got []string
		for _, element := range elements {
			got = append(got, string(element))
		}
		testkit.EqualSlices(t, got, want, "%s", text)
	}
}

// FuzzObject compares the members with encoding/json, which keeps the last of duplicates.
func FuzzObject(f *testing.F) {
	for _, text := range []string{
		`{}`, ` { } `, `{"a":1}`, `{"a":{"b":[1,"}"]},"c":"\\"}`, `{"a":"\ud800","a":"\u0000"}`, `{"":{}}`, `{"a":1,}`, `{"a" 1}`,
		`{"a":tru}`, `{"a":1}}`, `{"a":[}`, `[1]`, `"x"`, `{"é":"ü","x":-0.1E+2 , "y" : [ ] }`, `{"a":"` + "\x01" + `"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want map[string]json.RawMessage
		if !looksLikeObject(data) || strings.HasPrefix(string(data), byteOrderMark) || checkUTF8(data) != nil {
			return
		}
		wantErr := json.Unmarshal(data, &want)
		got, err := parseObject(data)
		if err != nil {
			var fault *Fault
			testkit.Require(t, errors.As(err, &fault) && fault.Reason == ReasonBadJSON, "error: got %v, want %s", err, ReasonBadJSON)
			testkit.Require(t, wantErr != nil, "%q: got %v, want no error", data, err)
			return
		}
		testkit.Require(t, wantErr == nil, "%q: got no error, want %v", data, wantErr)
		last, texts := make(map[string]string), make(map[string]string)
		for _, m := range got {
			testkit.Require(t, json.Valid(m.value), "%q: got value %q, want JSON", data, m.value)
			last[m.name] = string(m.value)
		}
		for name, value := range want {
			texts[name] = string(value)
		}
		testkit.EqualMaps(t, last, texts, "last members of %q", data)
	})
}
