package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
)

// fullness is the server's wording for a letter that does not fit.
type fullness string

const (
	notFull     fullness = ""
	subjectFull fullness = "maximum messages per subject"
	bytesFull   fullness = "maximum bytes"
)

// fullnessOf returns the bound for which the server refused a letter.
func fullnessOf(err error) fullness {
	const storeFailed = jetstream.ErrorCode(10077) // the reason is in the description
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	if !refused || refusal.ErrorCode != storeFailed {
		return notFull
	}
	for _, how := range []fullness{subjectFull, bytesFull} {
		if strings.Contains(refusal.Description, string(how)) {
			return how
		}
	}
	return notFull
}

// freeSubject removes the oldest letters of a full subject until one more fits, and returns their number.
func (w *Writer) freeSubject(ctx context.Context, subject string) (gone int, err error) {
	letters, err := w.stream(ctx)
	if err != nil {
		return 0, err
	}
	return w.purge(ctx, subject, map[string]any{"keep": letters.CachedInfo().Config.MaxMsgsPerSubject - 1})
}

// roomTimeout bounds a search through all letters.
const roomTimeout = time.Minute

// freeBytes removes the oldest letters of the largest first levels until a letter of the given size fits into the stream, and returns their
// number. It removes none if the letter already fits.
func (w *Writer) freeBytes(ctx context.Context, first string, size int) (gone int, err error) {
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	letters, err := w.stream(ctx)
	if err != nil {
		return 0, err
	}
	info := letters.CachedInfo()
	held, most := int(info.State.Bytes), int(info.Config.MaxBytes) //nolint:gosec // a number of bytes on a disk
	if held+size <= most {
		return 0, nil
	}
	found, err := w.pile(ctx, letters)
	if err != nil {
		return 0, fmt.Errorf("looking at the letters of stream %q: %w", info.Config.Name, err)
	}
	for subject, last := range found.oldest(first, size, held+size-most, most) {
		n, err := w.purge(ctx, subject, map[string]any{"seq": last + 1})
		gone += n
		if err != nil {
			return gone, err
		}
	}
	w.o.Logger.Warn("dead-letter stream is full: removed older letters", "stream", info.Config.Name, "letters", gone)
	return gone, nil
}

// stream returns the dead-letter stream with its current state.
func (w *Writer) stream(ctx context.Context) (jetstream.Stream, error) {
	letters, err := w.o.Streams.JetStream.Stream(ctx, w.o.Streams.Names.DeadLetterStream)
	if err != nil {
		return nil, fmt.Errorf("asking about stream %q: %w", w.o.Streams.Names.DeadLetterStream, err)
	}
	return letters, nil
}

// lying is a stored letter.
type lying struct {
	subject  string
	sequence uint64
	size     int
}

// piles are the letters by the first level of their category, oldest first.
type piles map[string][]lying

// pile lists all letters, without their bodies.
func (w *Writer) pile(ctx context.Context, letters jetstream.Stream) (piles, error) {
	found := make(piles)
	headers := stream.Headers{Client: w.o.Streams, Stream: letters, Subjects: w.o.Streams.Names.DeadLetterSubject + ".*.*", From: 1}
	_, err := headers.Each(ctx, func(m *nats.Msg, sequence uint64) error {
		_, first, _ := strings.Cut(strings.TrimPrefix(m.Subject, w.o.Streams.Names.DeadLetterSubject+"."), ".")
		body, _ := strconv.Atoi(m.Header.Get(nats.MsgSize)) // of the body, which was not requested
		size := messagesize.Of(m.Subject, m.Header, body)
		found[first] = append(found[first], lying{subject: m.Subject, sequence: sequence, size: size})
		return nil
	})
	return found, err
}

// More room than needed is made, so that all letters are listed only rarely: up to 1/spareShare of the stream, and up to 1/ownShare of the
// bytes of the first level that stores the letter.
const (
	spareShare = 16
	ownShare   = 8
)

// oldest picks the letters to remove so that a new letter fits. It returns the last picked letter on each subject.
func (p piles) oldest(own string, size, missing, most int) map[string]uint64 {
	bytes := map[string]int{own: size}
	for first, pile := range p {
		for _, letter := range pile {
			bytes[first] += letter.size
		}
	}
	share := most / len(bytes)
	last := make(map[string]uint64)
	freed := 0
	take := func(first string, wanted int) {
		for freed < wanted && len(p[first]) > 0 {
			oldest := p[first][0]
			p[first] = p[first][1:]
			last[oldest.subject] = oldest.sequence
			freed += oldest.size
			bytes[first] -= oldest.size
		}
		if len(p[first]) == 0 {
			delete(bytes, first)
		}
	}

	victim := heaviest(bytes)
	more := bytes[victim] - share
	if victim == own {
		more = max(more, bytes[own]/ownShare)
	}
	take(victim, max(missing, min(more, most/spareShare)))
	for freed < missing && len(bytes) > 0 {
		take(heaviest(bytes), freed+1)
	}
	return last
}

// heaviest returns the first level with the most bytes.
func heaviest(bytes map[string]int) string {
	return slices.MaxFunc(slices.Sorted(maps.Keys(bytes)), func(x, y string) int { return bytes[x] - bytes[y] })
}

// purge removes letters of a subject within the given limit, and returns their number.
func (w *Writer) purge(ctx context.Context, subject string, limit map[string]any) (int, error) {
	limit["filter"] = subject
	request, err := json.Marshal(limit)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	var result struct {
		Purged int                 `json:"purged"`
		Error  *jetstream.APIError `json:"error"`
	}
	api := "$JS.API.STREAM.PURGE." + w.o.Streams.Names.DeadLetterStream
	answer, err := w.o.Streams.Connection.Conn.RequestWithContext(ctx, api, request)
	if err == nil {
		err = json.Unmarshal(answer.Data, &result)
	}
	if err == nil && result.Error != nil {
		err = result.Error
	}
	if err != nil {
		return 0, fmt.Errorf("purging %s: %w", subject, err)
	}
	return result.Purged, nil
}
