package simulate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// maxLine is the longest line: the largest body that a setting allows, and a line feed.
const maxLine = 64<<20 + 1

// byteOrderMark may stand before the first line, put there by editors.
const byteOrderMark = "\ufeff"

var errNotObject = errors.New("not a JSON object")

// ReadLines reads a JSON object from each line that is not blank. It is taken as the worker takes a body on the bare
// subject of events, so the category is "default" where none is given, but with a time, which is required, and
// without title and text if need be. Progress is in bytes, the total unknown.
func ReadLines(ctx context.Context, in io.Reader, decoder event.Decoder, progress Progress) (*History, error) {
	h := &History{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	var read int64
	for number := uint64(1); lines.Scan(); number++ {
		read += int64(len(lines.Bytes()) + 1)
		if number%progressEvery == 0 {
			progress(read, 0)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		}
		line := bytes.TrimSpace(bytes.TrimPrefix(lines.Bytes(), []byte(byteOrderMark)))
		if len(line) == 0 {
			continue
		}
		if err := h.addLine(line, decoder); err != nil {
			h.reject(number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading lines: %w", err)
	}
	return h, nil
}

func (h *History) addLine(line []byte, decoder event.Decoder) error {
	if line[0] != '{' {
		return errNotObject
	}
	e, err := decoder.Decode(event.Message{Subject: decoder.Prefix, Data: line})
	if fault, faulty := errors.AsType[*event.Fault](err); faulty && fault.Reason != event.ReasonEmpty {
		return fault
	}
	return h.add(e.Time, replayedOf(e))
}
