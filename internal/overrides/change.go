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

// Set stores an override. The override expires after lasts; 0: never. Set returns the override with its revision, its end and the value
// that follows. It returns [ErrName] for an invalid name, and [ErrConflict] if the override has been changed concurrently. After a timeout,
// it is unknown whether the override is stored.
func (b *Bucket) Set(ctx context.Context, name Name, value string, lasts time.Duration) (Change, error) {
	return b.change(ctx, "setting", name, Change{Value: value}, lasts)
}

// Unset removes an override and returns the revision of the change. It returns the errors of Set, and [ErrNotSet].
func (b *Bucket) Unset(ctx context.Context, name Name) (uint64, error) {
	unset, err := b.change(ctx, "unsetting", name, Change{Deleted: true}, 0)
	return unset.Revision, err
}

func (b *Bucket) change(ctx context.Context, doing string, name Name, next Change, lasts time.Duration) (_ Change, err error) {
	next.Name = name
	if next.stored.key, err = name.Key(); err != nil {
		return Change{}, err
	}
	if next, err = b.replace(ctx, next, lasts); err != nil {
		return Change{}, fmt.Errorf("%s %s: %w", doing, name, err)
	}
	return next, nil
}

// NoteAdoption records in the history that the bucket's state replaced newer limits, and returns the revision of the note. The text
// describes the replaced limits. If another worker writes a note concurrently, NoteAdoption returns [ErrConflict].
func (b *Bucket) NoteAdoption(ctx context.Context, text string) (uint64, error) {
	noted, err := b.replace(ctx, Change{stored: stored{key: keyAdopted}, Value: text}, 0)
	if err != nil {
		return 0, fmt.Errorf("noting an adoption: %w", err)
	}
	return noted.Revision, nil
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

// longestBy bounds the name of an author.
const longestBy = 64

// cleanName makes an author's name safe for a terminal: at most longestBy printable characters.
func cleanName(name string) string {
	clean := []rune(strings.TrimSpace(name))
	clean = slices.DeleteFunc(clean, func(r rune) bool { return !unicode.IsPrint(r) })
	return string(clean[:min(len(clean), longestBy)])
}

// replace stores a change that replaces the newest change of its key, and returns it with its revision. The change expires after lasts;
// 0: never.
func (b *Bucket) replace(ctx context.Context, next Change, lasts time.Duration) (Change, error) {
	r, err := b.source.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return Change{}, b.source.fail("reading", err)
	}
	defer r.stop()
	last, found := r.newest()[next.stored.key]
	if next.Deleted && (!found || last.Deleted) {
		return Change{}, ErrNotSet
	}
	if lasts > 0 {
		next.Until = r.info.TimeStamp.Add(lasts)
		if next.Name.Kind == Limit {
			next.Then = last.lasting()
		}
	}
	next.Revision, err = b.store(ctx, next, last.Revision)
	return next, err
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
