package overrides

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Set stores an override and returns its revision. The errors are an [ErrName], and an [ErrConflict] if someone else
// changes the same override meanwhile. After a timeout it may be stored or not.
func (b *Bucket) Set(ctx context.Context, name Name, value string) (uint64, error) {
	key, err := name.Key()
	if err != nil {
		return 0, err
	}
	last, err := b.last(ctx, key)
	if err != nil {
		return 0, fmt.Errorf("setting %s: %w", name, err)
	}
	revision, err := b.store(ctx, record{key: key, value: value}, last.revision)
	if err != nil {
		return 0, fmt.Errorf("setting %s: %w", name, err)
	}
	return revision, nil
}

// Unset removes an override and returns the revision of that. The errors are those of Set, and an [ErrNotSet].
func (b *Bucket) Unset(ctx context.Context, name Name) (uint64, error) {
	key, err := name.Key()
	if err != nil {
		return 0, err
	}
	last, err := b.last(ctx, key)
	if err == nil && (last.deleted || last.revision == 0) {
		err = ErrNotSet
	}
	if err != nil {
		return 0, fmt.Errorf("unsetting %s: %w", name, err)
	}
	revision, err := b.store(ctx, record{key: key, deleted: true}, last.revision)
	if err != nil {
		return 0, fmt.Errorf("unsetting %s: %w", name, err)
	}
	return revision, nil
}

// NoteAdoption has the history tell that what the bucket holds was put in force although newer limits were, and returns
// the revision of that. The text says in the place of what. The error is an [ErrConflict] if someone else does so too.
func (b *Bucket) NoteAdoption(ctx context.Context, text string) (uint64, error) {
	last, err := b.last(ctx, keyAdopted)
	if err != nil {
		return 0, fmt.Errorf("noting an adoption: %w", err)
	}
	revision, err := b.store(ctx, record{key: keyAdopted, value: text}, last.revision)
	if err != nil {
		return 0, fmt.Errorf("noting an adoption: %w", err)
	}
	return revision, nil
}

// headerBy is the header of a change that names who made it. Changes that other programs make go without.
const headerBy = "Notifier-By"

// longestBy bounds the name of who made a change.
const longestBy = 64

// cleanName is a name on one line, without what would command a terminal, and not longer than it may be.
func cleanName(name string) string {
	var clean strings.Builder
	length := 0
	for _, r := range strings.TrimSpace(name) {
		if length == longestBy {
			break
		}
		if unicode.IsPrint(r) {
			clean.WriteRune(r)
			length++
		}
	}
	return clean.String()
}

// last returns the newest change of a key, or one with revision 0.
func (b *Bucket) last(ctx context.Context, key string) (record, error) {
	r, records, err := b.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return record{}, b.fail("reading", err)
	}
	defer r.stop()
	var last record
	for _, record := range records {
		if record.key == key {
			last = record
		}
	}
	return last, nil
}

// store adds a change if the newest one of its key has the revision, where 0 stands for none.
func (b *Bucket) store(ctx context.Context, change record, last uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	message := nats.NewMsg(b.prefix() + change.key)
	message.Data = []byte(change.value)
	if by := cleanName(b.o.By); by != "" {
		message.Header.Set(headerBy, by)
	}
	if change.deleted {
		message.Header.Set("KV-Operation", "DEL")
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
