package limits

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMuteCovers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, category string
		want           bool
	}{
		{"payments", "payments", true},
		{"payments", "payments.refunds.failed", true},
		{"payments", "paymentsx", false},
		{"payments.refunds", "payments", false},
		{"payments.*", "payments", false},
		{"payments.*", "payments.refunds", true},
		{"payments.*", "payments.refunds.failed", true},
		{"*.refunds", "payments.refunds", true},
		{event.Everything, "payments.refunds", true},
		{"Not A Path", "payments", false},
	} {
		mute := &Mute{Path: c.path}
		testkit.Equal(t, mute.Covers(c.category), c.want, "a mute of %s covers %s", c.path, c.category)
	}
}

// TestMuteIn has limits before, during and after a mute.
func TestMuteIn(t *testing.T) {
	t.Parallel()
	mute := &Mute{Path: "payments", Reason: "a\nb\tc", Begin: time.Unix(1, 0).UTC(), Until: time.Unix(2, 0).UTC(), Generation: 5, Revision: 7}
	at := func(revision uint64, mutes ...*Mute) Ruleset {
		return Ruleset{Mutes: mutes, Position: Position{Generation: 5, Revision: revision}}
	}
	testkit.Equal(t, mute.In(at(6)), true, "limits before the mute know that it has ended")
	testkit.Equal(t, mute.In(at(8, mute)), true, "the mute is in force")
	testkit.Equal(t, mute.In(at(9, &Mute{Path: "payments", Generation: 5, Revision: 9})), true, "a mute in its place is in force")
	testkit.Equal(t, mute.In(at(9, &Mute{Path: "payments", Rule: "1", Generation: 5, Revision: 9})), false, "a recurring mute is in its place")
	testkit.Equal(t, mute.In(at(9)), false, "the mute is in force after its end")
	testkit.Equal(t, *ParseMute(mute.Text()), *mute, "the mute that was read from its text")
	testkit.Equal(t, ParseMute("#channel") == nil, true, "another text is no mute")
}
