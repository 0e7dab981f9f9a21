package summary

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// Muted is a mute that has ended, in its digest.
type Muted struct {
	limits.Mute
	Ended      time.Time
	EndedBy    string // who ended it before its time; "": nobody, or unknown
	Replaced   bool   // another mute of the path ended it
	Firing     []Key  // the keys that fire after their last event, the oldest first
	MoreFiring bool   // there may be more of them

	Text string // text of the mute, which names its counts
}

// joinName returns the name of the counts of a channel: the channel or, for the counts of a mute, a line feed and the mute's text behind it.
func joinName(channel, mute string) string {
	if mute == "" {
		return channel
	}
	return channel + "\n" + mute
}

func splitName(name string) (channel string, mute *limits.Mute) {
	channel, text, _ := strings.Cut(name, "\n")
	return channel, limits.ParseMute(text)
}

func (d Digest) name() string {
	if d.Mute == nil {
		return d.Channel
	}
	return joinName(d.Channel, d.Mute.Text)
}

// ofMute makes the digest of a mute, if the counts are of a mute. The keys are in the stored form of lib/digests.lua.
func (d *Digest) ofMute(name, keys string) error {
	channel, mute := splitName(name)
	if mute == nil {
		return nil
	}
	_, text, _ := strings.Cut(name, "\n")
	d.Channel, d.Mute = channel, &Muted{Mute: *mute, Ended: mute.Until, Text: text}
	lines := strings.Split(keys, "\n")
	d.Mute.MoreFiring = lines[0] == "+"
	for _, line := range lines[1:] {
		values := strings.SplitN(line, "\t", 4)
		at, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil || len(values) < 4 {
			return fmt.Errorf("%w: a key of the digest for %q is %q", script.ErrReply, name, line)
		}
		if values[1] == "1" {
			d.Mute.Firing = append(d.Mute.Firing, Key{Name: values[2], Title: values[3], At: time.UnixMicro(at), Firing: true})
		}
	}
	slices.SortStableFunc(d.Mute.Firing, func(a, b Key) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Name, b.Name)) })
	return nil
}

// end finds the end of the mute among the changes of live limits. Without one it ended at its time. All times are by the clock of NATS.
func (m *Muted) end(changes []Change, now time.Time) {
	for _, change := range changes {
		if change.Mute == m.Name() && change.Revision > m.Revision && change.At.Before(m.Ended) {
			m.Ended, m.EndedBy, m.Replaced = change.At, change.By, change.Value != ""
		}
	}
	if m.Ended.After(now) { // the bucket no longer has the change that ended it
		m.Ended = now
	}
}
