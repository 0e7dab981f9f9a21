package overrides

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestSetAndUnset(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	for i, change := range []string{"payments.*=1/1m", "payments.*=2/1m", "payments.*=2/1m", "-payments.*"} {
		testkit.Equal(t, f.change(b, change), uint64(i+1), "revision of %s", change)
	}
	f.requireEntries(f.load(b))
	for change, want := range map[string]error{
		"-payments.*": ErrNotSet, "-shadow payments.*": ErrNotSet, "-never": ErrNotSet, "a b=1/1m": ErrName, "-A": ErrName,
	} {
		_, err := f.apply(b, change)
		testkit.Fails(f, "error", err, want)
	}
	testkit.Equal(t, f.change(b, "payments.*=3/1m"), 5, "revision after a deletion")
	f.requireEntries(f.load(b), "payments.*=3/1m")
}

// A change that replaces what an outdated snapshot has fails and changes nothing.
func TestLostRace(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		before       []string
		theirs, ours string
		want         []string
	}{
		"set against the first set": {nil, "a=theirs", "a=ours", []string{"a=theirs"}},
		"set against set":           {[]string{"a=old"}, "a=theirs", "a=ours", []string{"a=theirs"}},
		"set against unset":         {[]string{"a=old"}, "-a", "a=ours", nil},
		"unset against set":         {[]string{"a=old"}, "a=theirs", "-a", []string{"a=theirs"}},
		"set again after an unset":  {[]string{"a=old", "-a"}, "a=theirs", "a=ours", []string{"a=theirs"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f, b := newBucketFixture(t)
			f.change(b, test.before...)
			s := f.load(b)
			f.change(b, test.theirs)
			_, err := f.applyTo(b, s, test.ours)
			testkit.Fails(f, "error", err, ErrConflict)
			f.requireEntries(f.load(b), test.want...)
		})
	}
}

// A change writes nothing to another stream with the bucket's subjects.
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
	_, err := b.Set(f.context(), f.load(b), enforced("a"), "1/1m", 0)
	testkit.Fails(t, "error", err, nil)
	stream := testkit.Must(f.js.Stream(f.context(), other.Name))(t)
	testkit.Equal(t, stream.CachedInfo().State.LastSeq, 0, "messages of the other stream")
}
