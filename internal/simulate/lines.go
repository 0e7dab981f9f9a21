package simulate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

var errNotObject = errors.New("not a JSON object")

// source replaces the stream in the IDs of events without an ID.
const source = "line"

// ReadLines reads a JSON object from each line that is not blank. It decodes the object as a worker decodes a body on the bare subject of
// events, so an absent category is "default". A time is required; title and text are not. A group of alerts may have a time beside its
// alerts, which says when it was published; otherwise each alert has its own. Progress is in bytes, with an unknown total.
func ReadLines(ctx context.Context, in io.Reader, decoder event.Decoder, progress Progress) (*History, error) {
	h := &History{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, event.MaxLine)
	var read int64
	for number := uint64(1); lines.Scan(); number++ {
		read += int64(len(lines.Bytes()) + 1)
		if number%progressEvery == 0 {
			progress(read, 0)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		}
		line := bytes.TrimSpace(event.TrimStart(lines.Bytes()))
		if len(line) == 0 {
			continue
		}
		events, err := eventsOfLine(number, line, decoder)
		h.add(number, events, err)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading lines: %w", err)
	}
	return h, nil
}

func eventsOfLine(number uint64, line []byte, decoder event.Decoder) ([]Event, error) {
	if line[0] != '{' {
		return nil, errNotObject
	}
	m := event.Message{Subject: decoder.Prefix, Data: line, Stream: source, Sequence: number}
	isGroup, published, err := publishedGroup(m, decoder)
	if err != nil {
		return nil, err
	}
	var accepted []event.Reason
	if !isGroup {
		accepted = append(accepted, event.ReasonEmpty)
	}
	events, err := eventsOf(m, decoder, accepted...)
	if !published.IsZero() {
		for i := range events {
			events[i].At = published
		}
	}
	return events, err
}

// publishedGroup reports whether a line is a group of alerts, and returns the time of its publication if the line has one.
func publishedGroup(m event.Message, decoder event.Decoder) (isGroup bool, at time.Time, err error) {
	if !bytes.Contains(m.Data, []byte(`"alerts"`)) {
		return false, time.Time{}, nil
	}
	var members map[string]json.RawMessage
	var alerts []map[string]json.RawMessage
	err = json.Unmarshal(m.Data, &members)
	if err == nil {
		err = json.Unmarshal(members["alerts"], &alerts)
	}
	if isGroup = err == nil; !isGroup {
		return false, time.Time{}, nil // decoding finds out whether the line is an event
	}
	body, err := json.Marshal(map[string]json.RawMessage{"time": members["time"]})
	if err != nil {
		return true, time.Time{}, fmt.Errorf("reading the time beside alerts: %w", err)
	}
	e, err := decoder.Decode(event.Message{Subject: m.Subject, Data: body})
	if fault, faulty := errors.AsType[*event.Fault](err); faulty && fault.Reason != event.ReasonEmpty {
		return true, time.Time{}, fault
	}
	return true, e.Time, nil
}
