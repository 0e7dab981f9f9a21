package overrides

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// PastChange is a change, and what it replaced.
type PastChange struct {
	Change

	Old      string // value before the change; "" if none was set
	OldKnown bool   // false: the change before is no longer stored
}

// History returns all changes that the bucket still holds, the oldest first. The bucket keeps the last 64 of each override,
// unless somebody created it with fewer.
func (b *Bucket) History(ctx context.Context) ([]PastChange, error) {
	h, err := b.history(ctx)
	if err != nil {
		return nil, err
	}
	var changes []PastChange
	complete := h.oldestKnown() == 1
	count := make(map[string]int) // by key: how many changes are stored
	for _, r := range h.changes {
		count[r.key]++
	}
	values := make(map[string]string) // by key, after the changes so far
	for _, r := range h.changes {
		if r.forged || !b.understands(r) && !r.Adopted {
			continue
		}
		past := PastChange{Change: r}
		past.Old, past.OldKnown = values[r.key]
		past.OldKnown = past.OldKnown || complete || !r.purged && count[r.key] < h.limit
		values[r.key] = r.Value
		changes = append(changes, past)
	}
	return changes, nil
}

// Earlier returns the values that an override has had since it was last unset, the newest first.
func (b *Bucket) Earlier(ctx context.Context, name Name) ([]string, error) {
	history, err := b.History(ctx)
	if err != nil {
		return nil, err
	}
	var values []string
	for _, change := range slices.Backward(history) {
		if change.Name != name {
			continue
		}
		if change.Deleted {
			break
		}
		values = append(values, change.Value)
	}
	return values, nil
}

// Rollback sets and unsets what differs from the state right after a revision, and returns these changes in the order of their
// names. An override that had an end gets that end again. If the end has passed, what followed it is restored. The errors
// are an [ErrUnknownRevision] if there is no such revision or a change up to it is no longer stored, and an [ErrConflict] if
// someone else changes one of the overrides meanwhile. With an error come the changes that were made; another call makes the others.
func (b *Bucket) Rollback(ctx context.Context, revision uint64) ([]PastChange, error) {
	h, err := b.history(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.knows(revision); err != nil {
		return nil, err
	}
	changes := h.back(revision)
	now := newestOf(h.changes, h.last, h.limit)
	var made []PastChange
	for i, name := range slices.SortedFunc(maps.Keys(changes), Name.Compare) {
		replaced := now[changes[name].key]
		stored, err := b.store(ctx, changes[name], replaced.Revision)
		if err != nil {
			return made, fmt.Errorf("rolling back to revision %d, with %d of %d changes made: changing %s: %w",
				revision, i, len(changes), name, err)
		}
		change := changes[name]
		change.Name, change.Revision = name, stored
		made = append(made, PastChange{Change: change, Old: replaced.Value, OldKnown: true})
	}
	return made, nil
}

// history is all that the bucket still holds, the oldest first.
type history struct {
	changes []Change
	last    uint64    // the newest revision, whether it is still stored or not
	limit   int       // changes kept of each key
	read    time.Time // by the server's clock
}

func (b *Bucket) history(ctx context.Context) (history, error) {
	r, err := b.read(ctx, jetstream.DeliverAllPolicy)
	if err != nil {
		return history{}, b.fail("reading the history of", err)
	}
	defer r.stop()
	return history{
		changes: r.stored, last: r.revision, limit: int(r.info.Config.MaxMsgsPerSubject), read: r.info.TimeStamp,
	}, nil
}

// back returns the changes that lead from now to the state after a revision, each with the revision that it replaces.
func (h history) back(revision uint64) map[Name]Change {
	then, now := newestOf(h.changes, revision, h.limit), newestOf(h.changes, h.last, h.limit)
	changes := make(map[Name]Change)
	for key, current := range now {
		earlier, known := then[key]
		again := Change{key: key, Deleted: true, Revision: current.Revision}
		switch {
		case !known || earlier.Deleted:
		case earlier.due(h.read):
			again.Value, again.Deleted = earlier.Then, earlier.Then == ""
		default:
			again.Value, again.Deleted, again.Until, again.Then = earlier.Value, false, earlier.Until, earlier.Then
		}
		isSame := again.Deleted == current.Deleted && (again.Deleted || again.Value == current.Value && again.Until.Equal(current.Until))
		if !current.foreign && !isSame {
			changes[current.Name] = again
		}
	}
	return changes
}

// knows returns nil if the stored changes tell the state after a revision.
func (h history) knows(revision uint64) error {
	exists := slices.ContainsFunc(h.changes, func(c Change) bool { return c.Revision == revision })
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

// oldestKnown is the revision from which on every state is known. A revision that is not stored belongs to one of two kinds
// of keys. A key with as many messages as the stream keeps, or with a purge, is known from its first stored change on. Of any
// other key nothing is left, so the key is not set after its last revision.
func (h history) oldestKnown() uint64 {
	gap := h.last // the newest revision that is not stored
	for _, r := range slices.Backward(h.changes) {
		if r.Revision != gap {
			break
		}
		gap--
	}
	if gap == 0 {
		return 1
	}
	oldest := gap
	count, known := make(map[string]int), make(map[string]uint64)
	for _, r := range slices.Backward(h.changes) {
		count[r.key]++
		if !r.forged {
			known[r.key] = r.Revision
		}
		if r.purged || count[r.key] == h.limit {
			if known[r.key] == 0 {
				return h.last + 1
			}
			oldest = max(oldest, known[r.key])
		}
	}
	return oldest
}
