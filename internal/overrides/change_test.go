package overrides

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestSetAndUnset(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	name := enforced("payments.*")
	for i, value := range []string{"1/1m", "2/1m", "2/1m"} {
		if revision := f.set(b, name, value); revision != uint64(i+1) {
			t.Errorf("revision of %q = %d, want %d", value, revision, i+1)
		}
	}
	testkit.Equal(t, f.unset(b, name), 4, "revision of the deletion")
	f.requireEntries(f.load(b))
	for _, absent := range []Name{name, shadow("payments.*"), enforced("never")} {
		if _, err := b.Unset(f.context(), absent); !errors.Is(err, ErrNotSet) {
			t.Errorf("unsetting %v: %v", absent, err)
		}
	}
	testkit.Equal(t, f.set(b, name, "3/1m"), 5, "revision after a deletion")
	f.requireEntries(f.load(b), "payments.*=3/1m")
}

func TestChangesOfBadNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	if _, err := b.Set(f.context(), enforced("a b"), "1/1m"); !errors.Is(err, ErrName) {
		t.Errorf("setting: %v", err)
	}
	if _, err := b.Unset(f.context(), enforced("A")); !errors.Is(err, ErrName) {
		t.Errorf("unsetting: %v", err)
	}
	if s := f.load(b); s.Revision != 0 {
		t.Errorf("something was stored: %+v", s)
	}
}

// A change that names an outdated revision fails and changes nothing.
func TestLostRace(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		prepare, rival, change func(*fixture, *Bucket) error
		want                   string
	}{
		"set against the first set": {
			rival:  func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "theirs"); return err },
			change: func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "mine"); return err },
			want:   "theirs",
		},
		"set against set": {
			prepare: func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "old"); return err },
			rival:   func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "theirs"); return err },
			change:  func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "mine"); return err },
			want:    "theirs",
		},
		"set against unset": {
			prepare: func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "old"); return err },
			rival:   func(f *fixture, b *Bucket) error { _, err := b.Unset(f.context(), enforced("a")); return err },
			change:  func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "mine"); return err },
		},
		"unset against set": {
			prepare: func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "old"); return err },
			rival:   func(f *fixture, b *Bucket) error { _, err := b.Set(f.context(), enforced("a"), "theirs"); return err },
			change:  func(f *fixture, b *Bucket) error { _, err := b.Unset(f.context(), enforced("a")); return err },
			want:    "theirs",
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			b := f.open()
			if test.prepare != nil {
				testkit.NoError(t, test.prepare(f, b))
			}
			loser := newBucket(rival{JetStream: f.js, before: func() {
				if err := test.rival(f, b); err != nil {
					t.Error(err)
				}
			}}, f.options(false))
			if err := test.change(f, loser); !errors.Is(err, ErrConflict) {
				t.Errorf("error of the loser = %v, want ErrConflict", err)
			}
			if test.want == "" {
				f.requireEntries(f.load(b))
			} else {
				f.requireEntries(f.load(b), "a="+test.want)
			}
		})
	}
}

// Nothing is written to another stream that has taken over the bucket's subjects.
func TestChangeInAnotherStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.open()
	other := jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"$KV.limits.>"}}
	b := newBucket(rival{JetStream: f.js, before: func() {
		f.deleteBucket()
		if _, err := f.js.CreateStream(f.context(), other); err != nil {
			f.Error(err)
		}
	}}, f.options(false))
	if revision, err := b.Set(f.context(), enforced("a"), "1/1m"); err == nil {
		t.Errorf("it was stored as revision %d", revision)
	}
	stream, err := f.js.Stream(f.context(), other.Name)
	if err != nil || stream.CachedInfo().State.LastSeq != 0 {
		t.Errorf("the other stream: %+v, %v; want nothing in it", stream, err)
	}
}

// Of many changes made at once, each has a revision of its own or fails with ErrConflict.
func TestManyChangesAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.open()
	var working sync.WaitGroup
	var mu sync.Mutex
	stored := make(map[uint64]bool)
	for i := range 8 {
		working.Go(func() {
			for j := range 8 {
				revision, err := b.Set(f.context(), enforced("a"), fmt.Sprintf("%d/%dm", i+1, j+1))
				switch {
				case errors.Is(err, ErrConflict):
				case err != nil:
					f.Error(err)
				default:
					mu.Lock()
					if stored[revision] {
						f.Errorf("revision %d was given twice", revision)
					}
					stored[revision] = true
					mu.Unlock()
				}
			}
		})
	}
	working.Wait()
	if s := f.load(b); len(stored) == 0 || s.Revision != uint64(len(stored)) {
		t.Errorf("revision is %d after %d changes", s.Revision, len(stored))
	}
}
