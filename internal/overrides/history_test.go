package overrides

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "payments.*=1/1m", "shadow global=2/1m")
	f.put("Foreign", "x")
	f.change(b, "payments.*=3/1m", "-shadow global")
	changes := testkit.Must(b.History(f.context()))(t)
	var lines []string
	for i, c := range changes {
		lines = append(lines, fmt.Sprintf("%d %v=%s deleted=%t", c.Revision, c.Name, c.Value, c.Deleted))
		if i > 0 && c.Changed.Before(changes[i-1].Changed) {
			t.Errorf("%v was changed at %v, before the one before it", c.Name, c.Changed)
		}
	}
	want := []string{
		"1 payments.*=1/1m deleted=false", "2 shadow global=2/1m deleted=false",
		"4 payments.*=3/1m deleted=false", "5 shadow global= deleted=true",
	}
	testkit.EqualSlices(t, lines, want, "history")
	testkit.EqualSlices(t, testkit.Must(b.Earlier(f.context(), enforced("payments.*")))(t), []string{"3/1m", "1/1m"}, "earlier values")
	testkit.EqualSlices(t, testkit.Must(b.Earlier(f.context(), shadow("global")))(t), nil, "earlier values of what is not set")
}

// at returns the entries right after a revision, each as name=value.
func at(ctx context.Context, b *Bucket, revision uint64) ([]string, error) {
	h, err := b.history(ctx)
	if err != nil {
		return nil, err
	}
	var set []string
	for _, c := range h.after(revision) {
		if !c.stored.foreign && !c.Deleted {
			set = append(set, c.Name.String()+"="+c.Value)
		}
	}
	slices.Sort(set)
	return set, h.knows(revision)
}

func (f *fixture) requireAt(b *Bucket, revision uint64, want ...string) {
	f.Helper()
	testkit.EqualSlices(f, testkit.Must(at(f.context(), b, revision))(f), want, "at revision %d", revision)
}

func (f *fixture) requireUnknown(b *Bucket, revision uint64, says string) {
	f.Helper()
	_, err := at(f.context(), b, revision)
	testkit.Fails(f, "error", err, ErrUnknownRevision, says)
	_, err = b.Rollback(f.context(), revision, unchecked)
	testkit.Fails(f, "error", err, ErrUnknownRevision, says)
}

// A limit keeps 64 changes. Older values are not known.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "b=early")
	for i := range 64 {
		f.put("a", fmt.Sprint(i))
	}
	f.requireUnknown(b, 0, "no revision 0")
	f.requireUnknown(b, 66, "the newest is 65")
	f.requireAt(b, 1, "b=early")
	f.change(b, "a=newest", "b=late")
	f.requireUnknown(b, 1, "from 3 on")
	f.requireUnknown(b, 2, "from 3 on")
	f.requireAt(b, 3, "a=1", "b=early")
	f.requireAt(b, 66, "a=newest", "b=early")
	if changes, err := b.History(f.context()); err != nil || len(changes) != 66 || changes[1].Value != "1" {
		t.Errorf("history has %d changes, %v; want 66, the second of which is the second of a", len(changes), err)
	}
}

// A revision is unknown after another client removed earlier changes.
func TestAtAfterRemoval(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	kv := f.keyValue()
	f.change(b, "a=1", "b=2", "c=3")
	testkit.NoError(t, kv.Purge(f.context(), "a")) // revision 4, and 1 is gone
	f.requireUnknown(b, 1, "from 4 on")
	f.requireUnknown(b, 3, "from 4 on")
	f.requireAt(b, 4, "b=2", "c=3")
	f.change(b, "-b", "c=6")
	f.requireAt(b, 5, "c=3")
	testkit.NoError(t, kv.PurgeDeletes(f.context(), jetstream.DeleteMarkersOlderThan(-1))) // 2, 4 and 5 are gone
	f.requireUnknown(b, 3, "from 5 on")
	f.requireUnknown(b, 5, "no longer stored")
	f.requireAt(b, 6, "c=6")
}

// A history returns the true state of each revision, or an error if changes were removed.
func TestAtIsTrue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		keys := []string{"a", "b", "c"}
		h := history{limit: limit}
		truth := make(map[uint64]map[string]string)
		now := make(map[string]string)
		removed := false
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			key := rapid.SampledFrom(keys).Draw(t, "key")
			what := rapid.SampledFrom([]string{"set", "set", "set", "delete", "purge", "remove markers", "forge"}).Draw(t, "what")
			if what == "remove markers" {
				for key, c := range h.after(h.last) {
					if c.Deleted && !c.stored.overwritten {
						removed = true
						h.changes = slices.DeleteFunc(h.changes, func(c Change) bool { return c.stored.key == key })
					}
				}
				continue
			}
			h.last++
			if what == "purge" {
				removed = true
				h.changes = slices.DeleteFunc(h.changes, func(c Change) bool { return c.stored.key == key })
			}
			c := Change{Revision: h.last, Deleted: what == "delete" || what == "purge", stored: stored{key: key, purged: what == "purge", forged: what == "forge"}}
			switch what {
			case "set":
				c.Value = fmt.Sprint(h.last)
				now[key] = c.Value
			case "delete", "purge":
				delete(now, key)
			}
			h.changes = append(h.changes, c)
			truth[h.last] = maps.Clone(now)
			of := slices.DeleteFunc(slices.Clone(h.changes), func(c Change) bool { return c.stored.key != key })
			if len(of) > limit {
				removed = true
				h.changes = slices.DeleteFunc(h.changes, func(c Change) bool { return c.Revision == of[0].Revision })
			}
		}
		requireTrue(t, h, truth, removed)
	})
}

// requireTrue compares a history with the state after each revision.
func requireTrue(t *rapid.T, h history, truth map[uint64]map[string]string, removed bool) {
	for revision := range h.last {
		revision++
		if err := h.knows(revision); err != nil {
			testkit.Require(t, removed && errors.Is(err, ErrUnknownRevision), "revision %d of %+v: %v", revision, h, err)
			continue
		}
		got := make(map[string]string)
		for key, c := range h.after(revision) {
			if !c.Deleted {
				got[key] = c.Value
			}
		}
		testkit.Require(t, maps.Equal(got, truth[revision]), "at revision %d of %+v: %v, want %v", revision, h, got, truth[revision])
	}
	// The newest revision is known unless it was removed, or forged messages alone are left of a key.
	for _, c := range h.after(h.last) {
		if c.Lost {
			return
		}
	}
	if n := len(h.changes); n > 0 && h.changes[n-1].Revision == h.last && h.knows(h.last) != nil {
		t.Fatalf("the newest revision of %+v is not known: %v", h, h.knows(h.last))
	}
}

func TestRollback(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	// An override with an empty value differs from no override.
	target := f.change(b, "kept=1", "blank=", "changed.*=2", "shadow removed=3", "never=4", "-never")
	f.put("Foreign", "x")
	f.change(b, "changed.*=other", "-shadow removed", "-blank", "added=new", "never=again")

	want := []Name{enforced("added"), enforced("blank"), enforced("changed.*"), enforced("never"), shadow("removed")}
	made := testkit.Must(b.Rollback(f.context(), target, unchecked))(t)
	testkit.EqualSlices(t, namesOf(made), want, "changes of the rollback")
	if changed := made[2]; changed.Old != "other" || changed.Value != "2" || changed.Revision != target+6+3 {
		t.Errorf("third change: got %+v, want changed.* from other to 2 in revision %d", changed, target+6+3)
	}
	s := f.load(b)
	f.requireEntries(s, "blank=", "changed.*=2", "kept=1", "shadow removed=3")
	testkit.Equal(t, s.Revision, target+6+5, "revision, want five more than before")
	testkit.Equal(t, testkit.Must(f.keyValue().Get(f.context(), "Foreign"))(t).Revision(), target+1, "revision of the key that names no limit")

	// A second rollback changes nothing. A rollback can be rolled back.
	testkit.Equal(t, len(testkit.Must(b.Rollback(f.context(), target, unchecked))(t)), 0, "changes of a second rollback")
	testkit.Must(b.Rollback(f.context(), target+6, unchecked))(t)
	f.requireEntries(f.load(b), "added=new", "changed.*=other", "kept=1", "never=again")
}

// A rollback that loses a race keeps the other change, and returns the names that it has changed.
func TestRollbackLosesRace(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	target := f.change(b, "a=1")
	f.change(b, "a=2", "b=3", "c=4")
	published := 0
	loser := newBucket(rival{JetStream: f.js, before: func() {
		if published++; published == 2 {
			f.change(b, "b=theirs")
		}
	}}, f.options(false))
	changed, err := loser.Rollback(f.context(), target, unchecked)
	if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "1 of 3 changes made") || !slices.Equal(namesOf(changed), []Name{enforced("a")}) {
		t.Errorf("changed: %v, %v; want the first, and ErrConflict", changed, err)
	}
	f.requireEntries(f.load(b), "a=1", "b=theirs", "c=4")

	rest := testkit.Must(b.Rollback(f.context(), target, unchecked))(t)
	testkit.EqualSlices(t, namesOf(rest), []Name{enforced("b"), enforced("c")}, "changes of the next rollback")
	f.requireEntries(f.load(b), "a=1")
}

func namesOf(changes []PastChange) []Name {
	names := make([]Name, len(changes))
	for i, change := range changes {
		names[i] = change.Name
	}
	return names
}

// unchecked accepts every rollback.
func unchecked([]Change) error { return nil }

// TestRollbackIsChecked rejects a rollback before it changes anything.
func TestRollbackIsChecked(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	first := f.change(b, "payments=1/1h")
	last := f.change(b, "security=2/1h", "payments=3/1h")
	rejected := errors.New("rejected")
	var checked []string
	made, err := b.Rollback(f.context(), first, func(changes []Change) error {
		for _, change := range changes {
			checked = append(checked, fmt.Sprintf("%s %s %t", change.Name, change.Value, change.Deleted))
		}
		return rejected
	})
	testkit.Check(t, errors.Is(err, rejected) && len(made) == 0, "rollback: got %v, %v, want no change and the error of the check", made, err)
	testkit.EqualSlices(t, checked, []string{"payments 1/1h false", "security  true"}, "changes checked")
	testkit.Equal(t, f.load(b).Revision, last, "newest revision")
}
