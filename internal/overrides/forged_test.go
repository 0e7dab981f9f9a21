package overrides

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/schedule"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// pushesOut is more messages than the bucket keeps of one key.
const pushesOut = 70

// forge has the server publish acknowledgements of events on keys of the bucket, as a producer can that shares the workers' account.
func (f *fixture) forge(times int, keys ...string) {
	f.Helper()
	const subject = "notify.payments"
	testkit.Must(f.js.CreateOrUpdateStream(f.context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{subject}}))(f)
	for _, key := range keys {
		for range times {
			testkit.NoError(f, f.js.Conn().PublishMsg(&nats.Msg{Subject: subject, Reply: "$KV." + bucketName + "." + key, Data: []byte("{}")}))
		}
	}
	// The acknowledgement of a later event is published after the forged ones, and a later change is stored after them.
	testkit.Must(f.js.Publish(f.context(), subject, nil))(f)
	f.put("fence", "")
}

// A forged message changes no limit, has no place in the history, and does not stand in the way of a change.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1", "b.*=2", "c=3", "-c", "shadow d=4")
	f.forge(3, "a", "b.=", "c", "shadow/d", "e", "state/adopted")
	f.requireEntries(f.load(b), "a=1", "b.*=2", "fence=", "shadow d=4")
	testkit.EqualSlices(t, f.lines(b), []string{"a:  to 1", "b.*:  to 2", "c:  to 3", "c: 3 to ", "shadow d:  to 4", "fence:  to "}, "history")

	f.change(b, "a=5", "-b.*")
	f.setFor(b, "shadow-less", "1", time.Hour)
	testkit.Equal(t, f.setFor(b, "fence", "6", time.Hour).Then, "", "value that follows")
	f.requireEntries(f.load(b), "a=5", "fence=6", "shadow-less=1", "shadow d=4")
	_, err := b.Unset(f.context(), f.load(b), enforced("never"))
	testkit.Fails(f, "error", err, ErrNotSet)
	f.forge(1, "a")
	testkit.Equal(t, f.setFor(b, "a", "7", time.Hour).Then, "5", "value that follows a forged message")
	testkit.Must(b.Rollback(f.context(), 2, unchecked))(t)
	f.requireEntries(f.load(b), "a=1", "b.*=2")
}

// Forged messages that push out the history of a limit change nothing for a watcher, which stores the limit again. A reader that comes later
// finds it.
func TestWatcherRepairs(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1", "b=2", "-b")
	f.setFor(b, "c", "3", time.Hour)
	var forged atomic.Int64
	o := f.options(false)
	o.Forged = func(n int) { forged.Add(int64(n)) }
	w := f.mirrorWith(f.js, o)
	w.requireLast("a=1", "c=3")
	f.forge(pushesOut, "a", "b", "c", "d")
	testkit.Eventually(f, "everything is stored again", func() bool {
		return fmt.Sprint(entries(f.load(b))) == "[a=1 c=3 fence=]" && !overwritten(f.newest(b))
	})
	w.requireLast("a=1", "c=3", "fence=")
	for _, entry := range w.last().Entries {
		isTimed := entry.Name.Pattern == "c"
		testkit.Check(t, isTimed != entry.Until.IsZero(), "%s ends at %v", entry.Name, entry.Until)
	}
	weekly := testkit.Must(schedule.Parse("Tue 02:00-04:00 UTC"))(t)
	every := testkit.Must(b.SetMute(f.context(), f.load(b), NewMute("db", "vacuum", "").Recurring(weekly), time.Time{}))(t)
	f.forge(pushesOut, testkit.Must(every.Name.Key())(t))
	testkit.Eventually(f, "the schedule is stored again", func() bool {
		mutes := f.load(b).Mutes
		return len(mutes) == 1 && mutes[0].Muting.Every == every.Muting.Every && !overwritten(f.newest(b))
	})
	if n := forged.Load(); n < 64 || n > 5*pushesOut { // some are pushed out before they are read
		t.Errorf("%d forged messages were counted, want up to %d", n, 5*pushesOut)
	}
	testkit.Between(t, f.log.Count("restored live limits"), 1, pushesOut, "lines of repairs")
}

// A watcher that reads the bucket again, since its connection was lost and the server has forgotten its consumer, remembers a limit that was pushed out
// meanwhile.
func TestWatcherRemembers(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1")
	proxy := servertest.StartProxy(t, strings.TrimPrefix(f.server.URL, "nats://"))
	w := f.following(f.connect("nats://"+proxy.Addr), "a=1")
	proxy.Refuse(true)
	f.forge(pushesOut, "a", "b")
	f.restart()
	proxy.Refuse(false)
	testkit.Eventually(f, "everything is stored again", func() bool {
		stored, err := b.Load(f.context()) // the server may not answer yet
		return err == nil && fmt.Sprint(entries(stored)) == "[a=1 fence=]" && !overwritten(f.newest(b))
	})
	w.requireLast("a=1", "fence=")
}

// Where all that the bucket keeps of a limit is forged, nobody knows the limit. One message less, and it was never set. Setting it ends that.
func TestLostLimits(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "a=1", "b=1")
	f.forge(pushesOut, "a", "b")
	f.forge(63, "c")
	lost := func() (names []string) {
		for _, entry := range f.load(b).Entries {
			if entry.Lost {
				names = append(names, entry.Name.String())
			}
		}
		return names
	}
	testkit.EqualSlices(t, lost(), []string{"a", "b"}, "lost limits")
	w := f.mirror(f.js, false)
	w.requireLast("a=", "b=", "fence=")
	f.change(b, "a=2")
	testkit.EqualSlices(t, lost(), []string{"b"}, "lost limits after one is set")
	f.change(b, "-b")
	testkit.Equal(t, len(lost()), 0, "lost limits after the other one is unset")
	w.requireLast("a=2", "fence=")
}

func (f *fixture) newest(b *Bucket) map[string]Change {
	f.Helper()
	h := testkit.Must(b.history(f.context()))(f)
	return h.after(h.last)
}

// overwritten reports whether the newest message of a key is forged.
func overwritten(newest map[string]Change) bool {
	for _, c := range newest {
		if c.stored.overwritten {
			return true
		}
	}
	return false
}
