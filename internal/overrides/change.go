package overrides

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Set stores an override that replaces what a snapshot of Load has. The override expires after lasts; 0: never. Set returns the override with
// its revision, its end and the value that follows. It returns [ErrName] for an invalid name, and [ErrConflict] if the override has been
// changed since the snapshot. After a timeout, it is unknown whether the override is stored.
func (b *Bucket) Set(ctx context.Context, s Snapshot, name Name, value string, lasts time.Duration) (Change, error) {
	next := Change{Name: name, Value: value}
	if lasts > 0 {
		next.Until = s.Read.Add(lasts)
	}
	return b.replace(ctx, s, "setting", next)
}

// Unset removes an override of a snapshot and returns the revision of the change. It returns the errors of Set, and [ErrNotSet].
func (b *Bucket) Unset(ctx context.Context, s Snapshot, name Name) (uint64, error) {
	unset, err := b.replace(ctx, s, "unsetting", Change{Name: name, Deleted: true})
	return unset.Revision, err
}

// replace stores a change that replaces the change of its key in a snapshot, and returns it with its revision.
func (b *Bucket) replace(ctx context.Context, s Snapshot, doing string, next Change) (_ Change, err error) {
	if next.stored.key, err = next.Name.Key(); err != nil {
		return Change{}, err
	}
	last, found := s.newest[next.stored.key]
	if next.Name.Kind == Limit && !next.Until.IsZero() {
		next.Then = last.lasting()
	}
	if next.Deleted && (!found || last.Deleted) {
		err = ErrNotSet
	} else {
		next.Revision, err = b.store(ctx, next, last.Revision)
	}
	if err != nil {
		return Change{}, fmt.Errorf("%s %s: %w", doing, next.Name, err)
	}
	return next, nil
}

// NoteAdoption records in the history that the bucket's state, a snapshot of Load, replaced newer limits, and returns the revision of the
// note. The text describes the replaced limits. If somebody has written a note since the snapshot, NoteAdoption returns [ErrConflict].
func (b *Bucket) NoteAdoption(ctx context.Context, s Snapshot, text string) (uint64, error) {
	revision, err := b.store(ctx, Change{stored: stored{key: keyAdopted}, Value: text}, s.newest[keyAdopted].Revision)
	if err != nil {
		return 0, fmt.Errorf("noting an adoption: %w", err)
	}
	return revision, nil
}

// Headers of a change. Other programs do not set them.
const (
	headerBy    = "Notifier-By"    // author
	headerUntil = "Notifier-Until" // when the override ends, RFC 3339
	headerThen  = "Notifier-Then"  // value after the end; absent: the override is unset
	headerEnded = "Notifier-Ended" // revision of the override that ended with this change
	headerEvery = "Notifier-Every" // schedule of a mute; such as Tue 02:00-04:00 Europe/Paris
	headerSpare = "Notifier-Spare" // severity that a mute does not mute
)

const longestBy = 64

// cleanName makes an author's name safe for a terminal: at most longestBy printable characters.
func cleanName(name string) string {
	clean := []rune(strings.TrimSpace(name))
	clean = slices.DeleteFunc(clean, func(r rune) bool { return !unicode.IsPrint(r) })
	return string(clean[:min(len(clean), longestBy)])
}

// store stores a change if the newest change of its key has the revision last; 0: the key has no change.
func (b *Bucket) store(ctx context.Context, change Change, last uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	message := nats.NewMsg(b.source.prefix() + change.stored.key)
	message.Data = []byte(change.Value)
	trusted.Mark(message.Header)
	for header, value := range change.headers(b.o.By) {
		if value != "" {
			message.Header.Set(header, value)
		}
	}
	stored, err := b.source.js.PublishMsg(ctx, message,
		jetstream.WithExpectStream(b.source.stream()), jetstream.WithExpectLastSequencePerSubject(last))
	if refusal, refused := errors.AsType[*jetstream.APIError](err); refused {
		switch refusal.ErrorCode {
		case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
			return 0, ErrConflict
		}
	}
	if err != nil {
		return 0, b.source.fail("writing to", b.source.explain(err, b.source.prefix()+">"))
	}
	return stored.Sequence, nil
}
