package overrides

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Change is one change of an override.
type Change struct {
	Name     Name
	Old      string // "" if it was not set before, or if that is no longer stored
	Value    string // "" if it was deleted
	Deleted  bool
	Adopted  bool // no override was changed: the state was put in force in the place of what Value says
	Revision uint64
	Changed  time.Time // by the server's clock
	By       string    // who changed it, "" if that is not known
}

// History returns all changes that the bucket still holds, the oldest first. It keeps the last 64 of each override,
// unless it was made with fewer.
func (b *Bucket) History(ctx context.Context) ([]Change, error) {
	h, err := b.history(ctx)
	if err != nil {
		return nil, err
	}
	var changes []Change
	before := make(map[string]string)
	for _, r := range h.records {
		name, ok := b.name(r)
		if adopted := r.key == keyAdopted; ok || adopted {
			changes = append(changes, Change{
				Name: name, Old: before[r.key], Value: r.value, Deleted: r.deleted, Adopted: adopted,
				Revision: r.revision, Changed: r.changed, By: r.by,
			})
		}
		before[r.key] = r.value
	}
	return changes, nil
}

// At returns what was set right after a revision. The error is an [ErrUnknownRevision] if there is no such revision, or
// if changes up to it are no longer stored, so that it cannot be told.
func (b *Bucket) At(ctx context.Context, revision uint64) (map[Name]string, error) {
	h, err := b.history(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.knows(revision); err != nil {
		return nil, err
	}
	values := make(map[Name]string)
	for key, r := range h.at(revision) {
		if name, err := ParseKey(key); err == nil && !r.deleted {
			values[name] = r.value
		}
	}
	return values, nil
}

// Rollback sets and unsets what differs from the state right after a revision, and returns the names of that, in their
// order. The errors are those of At, and an [ErrConflict] if someone else changes one of these overrides meanwhile. It
// goes change by change: with an error come the names of those that were made, and calling it again makes the rest.
func (b *Bucket) Rollback(ctx context.Context, revision uint64) ([]Name, error) {
	h, err := b.history(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.knows(revision); err != nil {
		return nil, err
	}
	changes, now := h.back(revision), h.at(h.last)
	names := slices.SortedFunc(maps.Keys(changes), Name.Compare)
	for i, name := range names {
		change := changes[name]
		if _, err := b.store(ctx, change, now[change.key].revision); err != nil {
			return names[:i], fmt.Errorf("rolling back to revision %d, with %d of %d changes made: changing %s: %w",
				revision, i, len(names), name, err)
		}
	}
	return names, nil
}

// history is all that the bucket still holds, the oldest first.
type history struct {
	records []record
	last    uint64 // the newest revision, whether it is still stored or not
	limit   int    // changes kept of each key
}

func (b *Bucket) history(ctx context.Context) (history, error) {
	r, records, err := b.read(ctx, jetstream.DeliverAllPolicy)
	if err != nil {
		return history{}, b.fail("reading the history of", err)
	}
	defer r.stop()
	return history{records: records, last: r.start.last, limit: int(r.start.history)}, nil
}

// at returns the newest change of each key up to a revision.
func (h history) at(revision uint64) map[string]record {
	newest := make(map[string]record)
	for _, r := range h.records {
		if r.revision <= revision {
			newest[r.key] = r
		}
	}
	return newest
}

// back returns the changes that lead from now to the state after a revision.
func (h history) back(revision uint64) map[Name]record {
	then, now := h.at(revision), h.at(h.last)
	changes := make(map[Name]record)
	for key, current := range now {
		name, err := ParseKey(key)
		if err != nil {
			continue
		}
		earlier, known := then[key]
		unset := !known || earlier.deleted
		switch {
		case unset && !current.deleted:
			changes[name] = record{key: key, deleted: true}
		case !unset && (current.deleted || current.value != earlier.value):
			changes[name] = record{key: key, value: earlier.value}
		}
	}
	return changes
}

// knows returns nil if the state after a revision can be told.
func (h history) knows(revision uint64) error {
	exists := slices.ContainsFunc(h.records, func(r record) bool { return r.revision == revision })
	oldest := h.oldestKnown()
	switch {
	case revision == 0 || revision > h.last:
		return fmt.Errorf("%w: there is no revision %d, the newest is %d", ErrUnknownRevision, revision, h.last)
	case revision < oldest:
		return fmt.Errorf("%w: changes up to revision %d are no longer stored, everything is known from %d on",
			ErrUnknownRevision, revision, oldest)
	case !exists:
		return fmt.Errorf("%w: revision %d is no longer stored", ErrUnknownRevision, revision)
	}
	return nil
}

// oldestKnown is the revision from which on nothing is missing. Messages are missing where the stream's sequence has
// gaps. A key that was changed more often than the stream keeps, or was purged, is known from its first message on. Any
// other one that is missing belongs to a key of which nothing is left, which then is not set once the last of them is past.
func (h history) oldestKnown() uint64 {
	firstGap, lastGap := h.gaps()
	if lastGap == 0 {
		return 1
	}
	oldest := lastGap
	first := make(map[string]record)
	count := make(map[string]int)
	for _, r := range h.records {
		if count[r.key]++; count[r.key] == 1 {
			first[r.key] = r
		}
	}
	for key, r := range first {
		if (count[key] >= h.limit || r.purged) && r.revision > firstGap {
			oldest = max(oldest, r.revision)
		}
	}
	return oldest
}

// gaps returns the oldest and the newest revision that is missing, or 0 for none.
func (h history) gaps() (oldest, newest uint64) {
	next := uint64(1)
	for _, r := range append(slices.Clone(h.records), record{revision: h.last + 1}) {
		if r.revision > next {
			if oldest == 0 {
				oldest = next
			}
			newest = r.revision - 1
		}
		next = r.revision + 1
	}
	return oldest, newest
}
