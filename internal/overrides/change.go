package overrides

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Set stores an override and returns its revision. The errors are an [ErrName], and an [ErrConflict] if someone else
// changes the same override meanwhile. After a timeout it may be stored or not.
func (b *Bucket) Set(ctx context.Context, name Name, value string) (uint64, error) {
	return b.change(ctx, "setting", name, Change{Value: value})
}

// Unset removes an override and returns the revision of that. The errors are those of Set, and an [ErrNotSet].
func (b *Bucket) Unset(ctx context.Context, name Name) (uint64, error) {
	return b.change(ctx, "unsetting", name, Change{Deleted: true})
}

func (b *Bucket) change(ctx context.Context, doing string, name Name, change Change) (_ uint64, err error) {
	if change.key, err = name.Key(); err != nil {
		return 0, err
	}
	revision, err := b.replace(ctx, change)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", doing, name, err)
	}
	return revision, nil
}

// NoteAdoption writes into the history that the bucket's state was put in force although newer limits were, and returns
// the revision of that note. The text says what was in force before. The error is an [ErrConflict] if someone else does so
// too.
func (b *Bucket) NoteAdoption(ctx context.Context, text string) (uint64, error) {
	revision, err := b.replace(ctx, Change{key: keyAdopted, Value: text})
	if err != nil {
		return 0, fmt.Errorf("noting an adoption: %w", err)
	}
	return revision, nil
}

// headerBy is the header with the author of a change. Changes by other programs have none.
const headerBy = "Notifier-By"

// longestBy bounds the name of an author.
const longestBy = 64

// cleanName makes an author's name fit for a terminal: printable characters only, and not too many.
func cleanName(name string) string {
	clean := []rune(strings.TrimSpace(name))
	clean = slices.DeleteFunc(clean, func(r rune) bool { return !unicode.IsPrint(r) })
	return string(clean[:min(len(clean), longestBy)])
}

// replace adds a change to the newest change of its key.
func (b *Bucket) replace(ctx context.Context, change Change) (uint64, error) {
	r, err := b.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return 0, b.fail("reading", err)
	}
	defer r.stop()
	last := Change{Deleted: true}
	for _, stored := range r.stored {
		if stored.key == change.key {
			last = stored
		}
	}
	if change.Deleted && last.Deleted {
		return 0, ErrNotSet
	}
	return b.store(ctx, change, last.Revision)
}

// store adds a change if the newest change of its key has the revision, where 0 stands for no change.
func (b *Bucket) store(ctx context.Context, change Change, last uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	message := nats.NewMsg(b.prefix() + change.key)
	message.Data = []byte(change.Value)
	if by := cleanName(b.o.By); by != "" {
		message.Header.Set(headerBy, by)
	}
	if change.Deleted {
		message.Header.Set(headerOperation, operationDelete)
	}
	stored, err := b.js.PublishMsg(ctx, message,
		jetstream.WithExpectStream(b.stream()), jetstream.WithExpectLastSequencePerSubject(last))
	if refusal, refused := errors.AsType[*jetstream.APIError](err); refused {
		switch refusal.ErrorCode {
		case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
			return 0, ErrConflict
		}
	}
	if err != nil {
		return 0, b.fail("writing to", b.explain(err, b.prefix()+">"))
	}
	return stored.Sequence, nil
}
