package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// The body of a message is S2-compressed JSON lines, one per [Entry].

const headerInstance = "Notifier-Instance"

// newMessage makes a message of lines. The stream uses its name to ignore a second copy.
func newMessage(subject, instance, name string, lines []byte) *nats.Msg {
	message := nats.NewMsg(subject)
	trusted.Mark(message.Header)
	message.Header.Set(headerInstance, instance)
	message.Header.Set(nats.MsgIdHdr, name)
	message.Data = s2.Encode(nil, lines)
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

// appendLine appends an entry without its instance. A line begins with the result, and has no printable ASCII in escaped form beside quotes
// and backslashes: linesOf and categoriesOf rely on that.
func appendLine(lines []byte, e Entry) []byte {
	for _, at := range []*time.Time{&e.Next, &e.Stored, &e.Decided, &e.Message, &e.LastStored} {
		*at = at.UTC()
	}
	e.Instance = "" // the message has it
	buffer := bytes.NewBuffer(lines)
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(e) // every entry can be encoded
	return buffer.Bytes()
}
