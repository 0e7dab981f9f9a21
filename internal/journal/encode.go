package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// The body of a message is S2-compressed JSON lines, one per [Entry]. Workers encode entries while they handle a flood, so appendLine
// avoids reflection: BenchmarkEncode compares it with encoding/json. Readers use encoding/json.

// headerInstance is the header with the name of the worker that wrote a message.
const headerInstance = "Notifier-Instance"

// message makes a message of a pile. The stream uses its name to ignore a second copy.
func (p pile) message(subject, instance, name string) *nats.Msg {
	message := nats.NewMsg(subject)
	trusted.Mark(message.Header)
	message.Header.Set(headerInstance, instance)
	message.Header.Set(nats.MsgIdHdr, name)
	message.Data = s2.Encode(nil, p.lines)
	return message
}

// decode reads the body of a message. A nil filter selects every line.
func decode(header nats.Header, data []byte, filter func(line []byte) bool) ([]Entry, error) {
	lines, err := s2.Decode(nil, data)
	if err != nil {
		return nil, fmt.Errorf("decompressing a message of the journal: %w", err)
	}
	var entries []Entry
	for line := range bytes.Lines(lines) {
		if filter != nil && !filter(line) {
			continue
		}
		var entry Entry
		if err := json.Unmarshal(line, &entry); err != nil {
			return nil, fmt.Errorf("decoding an entry of the journal: %w", err)
		}
		entry.Instance = header.Get(headerInstance)
		entries = append(entries, entry)
	}
	return entries, nil
}

// categoriesOf returns the categories in the body of a message, without decoding its lines. It skips a body that cannot be decompressed.
func categoriesOf(data []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		lines, err := s2.Decode(nil, data)
		if err != nil {
			return
		}
		for line := range bytes.Lines(lines) {
			_, rest, _ := bytes.Cut(line, []byte(`,"category":"`)) // no text holds this: quotes are escaped
			category, _, isWhole := bytes.Cut(rest, []byte(`"`))
			if isWhole && len(category) > 0 && !yield(string(category)) {
				return
			}
		}
	}
}

// appendLine appends an entry without its instance.
func appendLine(line []byte, e *Entry) []byte {
	line = append(line, `{"result":`...)
	line = appendQuoted(line, string(e.Result))
	line = appendText(line, "id", e.ID)
	line = appendText(line, "in", e.Stream)
	line = appendNumber(line, "seq", e.Sequence)
	line = appendText(line, "category", e.Category)
	line = appendText(line, "title", e.Title)
	line = appendText(line, "reason", e.Reason)
	line = appendText(line, "level", e.Level)
	line = appendText(line, "path", e.Path)
	line = appendText(line, "key", e.Key)
	line = appendText(line, "limit", e.Limit)
	line = appendNumber(line, "cost", e.Cost)
	line = appendNumber(line, "used", e.Used)
	line = appendNumber(line, "size", e.Size)
	line = appendTime(line, "next", e.Next)
	line = appendText(line, "revision", e.Revision)
	line = appendTime(line, "stored", e.Stored)
	line = appendTime(line, "decided", e.Decided)
	line = appendText(line, "channel", e.Channel)
	line = appendNumber(line, "round", e.Round)
	line = appendText(line, "rounds", string(e.Rounds))
	line = appendText(line, "mute", e.Mute)
	line = appendText(line, "receipt", e.Receipt)
	line = appendText(line, "code", e.Code)
	line = appendNumber(line, "number", e.Number)
	line = appendTime(line, "message", e.Message)
	if e.Flapping {
		line = append(line, `,"flapping":true`...)
	}
	line = appendText(line, "trace", e.Trace)
	line = appendText(line, "by", e.By)
	line = appendNumber(line, "count", e.Count)
	line = appendText(line, "last_id", e.LastID)
	line = appendNumber(line, "last_seq", e.LastSequence)
	line = appendTime(line, "last_stored", e.LastStored)
	line = appendNumber(line, "last_round", e.LastRound)
	if e.Below {
		line = append(line, `,"below":true`...)
	}
	return append(line, '}', '\n')
}

func appendName(line []byte, name string) []byte {
	line = append(line, `,"`...)
	line = append(line, name...)
	return append(line, `":`...)
}

func appendText(line []byte, name, text string) []byte {
	if text == "" {
		return line
	}
	return appendQuoted(appendName(line, name), text)
}

func appendNumber[N int | int64 | uint64](line []byte, name string, n N) []byte {
	switch {
	case n == 0:
		return line
	case n < 0:
		return strconv.AppendInt(appendName(line, name), int64(n), 10)
	}
	return strconv.AppendUint(appendName(line, name), uint64(n), 10)
}

func appendTime(line []byte, name string, t time.Time) []byte {
	if t.IsZero() {
		return line
	}
	line = append(appendName(line, name), '"')
	line = t.UTC().AppendFormat(line, time.RFC3339Nano)
	return append(line, '"')
}

// appendQuoted appends a JSON string. It does not escape printable ASCII: linesOf relies on that.
func appendQuoted(line []byte, text string) []byte {
	for _, c := range []byte(text) {
		if isEscaped(rune(c)) {
			return appendEscaped(line, text)
		}
	}
	line = append(line, '"')
	line = append(line, text...)
	return append(line, '"')
}

// isEscaped reports whether a line may hold a character in escaped form.
func isEscaped(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }

func appendEscaped(line []byte, text string) []byte {
	var quoted bytes.Buffer
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string can be encoded
	return append(line, bytes.TrimSuffix(quoted.Bytes(), []byte("\n"))...)
}
