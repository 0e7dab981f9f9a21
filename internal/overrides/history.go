package overrides

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// PastChange is a change with the value that it replaced.
type PastChange struct {
	Change

	Old      string // value before the change; "" if none was set
	OldKnown bool   // false: the previous change is no longer stored
}

// History returns all changes that the bucket still holds, the oldest first: usually the last 64 of each override.
func (b *Bucket) History(ctx context.Context) ([]PastChange, error) {
	h, err := b.history(ctx)
	if err != nil {
		return nil, err
	}
	var changes []PastChange
	complete := h.oldestKnown() == 1
	count := make(map[string]int) // stored changes by key
	for _, r := range h.changes {
		count[r.stored.key]++
	}
	values := make(map[string]string) // by key, after the changes so far
	for _, r := range h.changes {
		if r.stored.forged || !b.understands(r) && !r.Adopted() {
			continue
		}
		past := PastChange{Change: r}
		past.Old, past.OldKnown = values[r.stored.key]
		past.OldKnown = past.OldKnown || complete || !r.stored.purged && count[r.stored.key] < h.limit
		values[r.stored.key] = r.Value
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

// Rollback restores the state right after a revision, and returns its changes in the order of their names. An override that had an end gets
// that end again. If the end has passed, Rollback restores the value that followed. It returns [ErrUnknownRevision] if the revision does
// not exist or the changes up to it are no longer stored. Before any change is made, check gets all changes; Rollback returns its error. It
// returns [ErrConflict] if an override has been changed concurrently. With an error, it returns the changes made so far. A second call
// makes the remaining changes.
func (b *Bucket) Rollback(ctx context.Context, revision uint64, check func([]Change) error) ([]PastChange, error) {
	h, err := b.history(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.knows(revision); err != nil {
		return nil, err
	}
	changes := h.back(revision)
	if err := check(changes); err != nil {
		return nil, fmt.Errorf("rolling back to revision %d: %w", revision, err)
	}
	now := h.after(h.last)
	var made []PastChange
	for i, change := range changes {
		replaced := now[change.stored.key]
		stored, err := b.store(ctx, change, replaced.Revision)
		if err != nil {
			return made, fmt.Errorf("rolling back to revision %d, with %d of %d changes made: changing %s: %w",
				revision, i, len(changes), change.Name, err)
		}
		change.Revision = stored
		made = append(made, PastChange{Change: change, Old: replaced.Value, OldKnown: true})
	}
	return made, nil
}

// history holds the changes that a bucket had when it was read: all stored changes, or the newest stored change of each key.
type history struct {
	changes []Change  // the oldest first
	last    uint64    // the newest revision, which may no longer be stored
	limit   int       // how many changes of a key the bucket stores
	read    time.Time // by the server's clock
}

func (b *Bucket) history(ctx context.Context) (history, error) {
	r, err := b.source.read(ctx, jetstream.DeliverAllPolicy)
	if err != nil {
		return history{}, b.source.fail("reading the history of", err)
	}
	defer r.stop()
	return r.history, nil
}

// back returns the changes from the present state to the state after a revision, by name, each with the revision that it replaces.
func (h history) back(revision uint64) (changes []Change) {
	then, now := h.after(revision), h.after(h.last)
	for key, current := range now {
		earlier, known := then[key]
		again := Change{Name: current.Name, stored: stored{key: key}, Deleted: true, Revision: current.Revision}
		switch {
		case !known || earlier.Deleted:
		case earlier.due(h.read):
			again.Value, again.Deleted = earlier.Then, earlier.Then == ""
		default:
			again.Value, again.Deleted, again.Until, again.Then = earlier.Value, false, earlier.Until, earlier.Then
		}
		isSame := again.Deleted == current.Deleted && (again.Deleted || again.Value == current.Value && again.Until.Equal(current.Until))
		if !current.stored.foreign && !isSame && current.Name.Kind == Limit { // what an operator muted or unmuted since stays so
			changes = append(changes, again)
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.Name.Compare(b.Name) })
	return changes
}

// knows returns nil if the stored changes determine the state after a revision.
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

// oldestKnown returns the first revision after which every state can be reconstructed. A revision that is no longer stored belongs to one
// of two kinds of keys. A key with a full history or a purge can be reconstructed from its first stored change. Any other key has no
// stored change left, so it is not set after its last revision.
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
		count[r.stored.key]++
		if !r.stored.forged {
			known[r.stored.key] = r.Revision
		}
		if r.stored.purged || count[r.stored.key] == h.limit {
			if known[r.stored.key] == 0 {
				return h.last + 1
			}
			oldest = max(oldest, known[r.stored.key])
		}
	}
	return oldest
}
