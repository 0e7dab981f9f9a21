package why

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Clock formats a time to the millisecond, with the date if it is not the day of now.
func Clock(t, now time.Time) string { return timeOfDay(t, now, "15:04:05.000") }

func timeOfDay(t, now time.Time, layout string) string {
	t = t.In(now.Location())
	if t.Format(time.DateOnly) != now.Format(time.DateOnly) {
		layout = time.DateOnly + " " + layout
	}
	return t.Format(layout)
}

type words struct {
	now    time.Time
	expiry func(category string) string // see Policy.Expiry
}

func (w words) stamp(t time.Time) string { return Clock(t, w.now) }

func (w words) second(t time.Time) string { return timeOfDay(t, w.now, time.TimeOnly) }

// phrases describes one entry of an event. The caller writes the time between the two phrases.
func (w words) phrases(e journal.Entry) (what, how string) {
	switch e.Result {
	case journal.Sent:
		if e.Channel != "" {
			how += " to " + e.Channel
		}
		if e.Level != "" {
			how += fmt.Sprintf("; in shadow mode, %s would have denied it", limitOf(e))
		}
		return "sent", how + After("; released by ", e.By)
	case journal.Dropped:
		return "dropped", " by " + w.sayDenial(e)
	case journal.Duplicate:
		return "duplicate", ": another message with its ID was admitted before, or waited for a slot"
	case journal.Dead:
		return "stored as a dead letter", After(": ", reasonOf(e.Reason, e.Error))
	case journal.Expired:
		return "expired", ": it had become older than " + w.expiry(e.Category)
	case journal.Folded:
		if e.Message.IsZero() {
			return "folded", " into a message of its key"
		}
		how = " into the message of " + timeOfDay(e.Message, w.now, "15:04")
		if e.Number > 0 {
			how += fmt.Sprintf(" as number %d", e.Number)
		}
		if e.Flapping {
			how += " of a flapping key"
		}
		return "folded", how
	case journal.Waiting:
		if how = After(" for ", waitsFor(e.Reason)); e.Level != "" {
			how += " of " + limitOf(e) // which was full, or whose slots older events wait for
		}
		return "began to wait", how + After("; released by ", e.By)
	case journal.Failed:
		return "could not be posted", After(": ", reasonOf(e.Reason, e.Error)) + "; it is tried again"
	case journal.Split:
		return "its body held several alerts, and was split", " into one event for each"
	case journal.Steady:
		return "its key was reported as steady", " to " + e.Channel
	}
	return string(e.Result), ""
}

// reasonFor returns the part of the phrases that other events may share: the number of a folded event is its own.
func (w words) reasonFor(e journal.Entry) string {
	e.Number = 0
	what, how := w.phrases(e)
	return what + how
}

// equal returns how many entries at the start of the list have the reason of the first one, such as waits that follow each other.
func (w words) equal(entries []journal.Entry) int {
	reason, n := w.reasonFor(entries[0]), 1
	for n < len(entries) && w.reasonFor(entries[n]) == reason {
		n++
	}
	return n
}

// sayAll describes entries with the same reason in one sentence.
func (w words) sayAll(entries []journal.Entry) string {
	first, last := entries[0], entries[len(entries)-1]
	what, how := w.phrases(first)
	sentence := what + " at " + w.stamp(first.Decided) + how
	if n := len(entries); n > 1 {
		sentence += fmt.Sprintf(", %d times, the last time at %s", n, w.stamp(last.Decided))
	}
	return sentence + w.sayUntil(last)
}

// After returns a text behind the words that lead to it; "" without a text.
func After(words, text string) string {
	if text == "" {
		return ""
	}
	return words + text
}

func (w words) sayUntil(e journal.Entry) string {
	if e.Result != journal.Waiting || e.Next.IsZero() {
		return ""
	}
	return ", until " + w.stamp(e.Next)
}

func limitOf(e journal.Entry) string {
	return strings.TrimSpace(e.Level + " " + e.Limit)
}

// sayDenial says which limit denied an event, and how full the limit was.
func (w words) sayDenial(e journal.Entry) string {
	switch e.Level {
	case limits.LevelUnpaired:
		return "unpaired: it resolves an event that was never posted"
	case limits.LevelMute:
		if e.Path == "" {
			return "a mute"
		}
		text := "mute of " + e.Path
		if !e.Next.IsZero() {
			text += " until " + w.second(e.Next)
		}
		return strings.TrimSuffix(text+", "+e.Reason, ", ")
	case limits.LevelOperator:
		return cmp.Or(e.By, "an operator") + " with notifier delayed drop, while it waited"
	case limits.LevelRoom:
		return "room: " + cmp.Or(e.Reason, "too many events of its first-level category were waiting")
	case limits.LevelClosed:
		return "closed: redis was unavailable, and NOTIFIER_REDIS_FAILURE=closed drops what cannot be counted"
	}
	text := limitOf(e)
	if e.Cost > 1 {
		text += fmt.Sprintf(" (the event takes %d slots)", e.Cost)
	}
	limit, err := limits.Parse(e.Limit)
	switch {
	case err == nil && len(limit) == 1 && limit[0].Capacity() == 0:
		return text + ", which lets nothing through"
	case e.Size > 0 && int64(e.Cost) > e.Size:
		return text + fmt.Sprintf(": it can never fit, since the limit has %d slots", e.Size)
	case e.Used > 0:
		text += fmt.Sprintf(": %d of %d used", e.Used, e.Size)
	case e.Next.IsZero(): // guarantees may reserve all slots
		text += ": it had no slot for the event"
	default:
		text += ": it was full"
	}
	if !e.Next.IsZero() {
		verb := "opened"
		if e.Next.After(w.now) {
			verb = "opens"
		}
		text += fmt.Sprintf(", the next slot %s at %s", verb, w.second(e.Next))
	}
	return text + After("; it could not wait: ", e.Reason)
}

// waited has what an event waits for, by the reason of its wait.
var waited = map[string]string{
	"slot":    "a slot",
	"pair":    "the outcome of an earlier event of its key",
	"redis":   "redis, which is unavailable or refuses a key on its path",
	"body":    "its turn to be decoded",
	"channel": "its channel",
	"update":  "its turn among the updates",
	"steady":  "its key to be steady",
	"part":    "a worker",
	"replay":  "a worker",
	room.Due:  "a worker",
}

func waitsFor(reason string) string { return cmp.Or(waited[reason], reason) }

func reasonOf(reason, detail string) string {
	if detail == "" || detail == reason {
		return reason
	}
	return reason + ": " + detail
}

// placeOfPending says where an event waits, and since when or until when.
func (w words) placeOfPending(p Pending) (where, since, until string) {
	switch p.Reason {
	case "":
		return "is in the stream without an outcome", ", since " + w.stamp(p.Stored), ""
	case room.Due:
		return "is back from the room, and the next worker takes it" + ordered(p.Order), "", ""
	}
	where = "is in the room now and waits for " + waitsFor(p.Reason) + ordered(p.Order)
	switch p.Reason {
	case string(room.Update):
		where = "an update of a message of its key " + where
	case string(room.Steady):
		where = "the report that its key is steady waits in the room, unless the key changes"
	}
	if p.Key != "" && p.Reason == "pair" {
		where += fmt.Sprintf(", with the key %q", p.Key)
	}
	if p.Due.After(w.now) {
		until = ", until " + w.stamp(p.Due)
	}
	return where, "", until
}

// ordered says what an operator has ordered; "" for nothing.
func ordered(order room.Order) string {
	switch order.Action {
	case room.Release:
		return After("; released by ", order.By)
	case room.Drop:
		return "; " + order.By + " has dropped it"
	}
	return ""
}

// sayWaiting says how many events have no outcome, by what they wait for.
func sayWaiting(reasons map[string]int) (sentences []string) {
	names := slices.SortedFunc(maps.Keys(reasons), func(x, y string) int {
		return cmp.Or(reasons[y]-reasons[x], strings.Compare(x, y))
	})
	for _, reason := range names {
		what := "waiting in the room now for " + waitsFor(reason)
		if reason == "" {
			what = "in the stream of the producers now, without an outcome"
		}
		sentences = append(sentences, fmt.Sprintf("%s: %d", what, reasons[reason]))
	}
	return sentences
}

// aggregated are aggregated entries that may include the selected events, in the order of their times. A flood leaves millions of them.
type aggregated struct {
	first   []journal.Entry // at most mostAggregated
	entries int
	events  int
	last    time.Time
}

const mostAggregated = 5

func (c *aggregated) add(entry journal.Entry) {
	if c.entries++; c.entries <= mostAggregated {
		c.first = append(c.first, entry)
	}
	c.events, c.last = c.events+entry.Count, entry.Decided
}

// sayCounts describes the aggregated entries that may include the selected events, one sentence each, or one for many.
func (a *asking) sayCounts() (sentences []string) {
	if a.counted.entries > mostAggregated {
		return []string{fmt.Sprintf("%d events more that may be meant were counted between %s and %s, and are not listed one by one",
			a.counted.events, a.words.second(a.counted.first[0].Decided), a.words.second(a.counted.last))}
	}
	for _, entry := range a.counted.first {
		sentences = append(sentences, a.words.sayCounted(entry))
	}
	return sentences
}

func (w words) sayCounted(e journal.Entry) string {
	what := string(e.Result)
	if e.Level != "" {
		what += " by " + limitOf(e)
	}
	category := e.Category
	if e.Below {
		category = strings.TrimPrefix(category+" and below", " ")
	}
	return fmt.Sprintf("at least %d events of %s that were %s in the second of %s may be meant, of messages %d to %d: they are counted, "+
		"not listed one by one", e.Count, cmp.Or(category, "all categories"), what, w.second(e.Decided), e.Sequence, e.LastSequence)
}

func (a *asking) sayMissing() string {
	text := "the journal begins at " + a.words.stamp(a.read.Begins)
	switch {
	case a.read.Begins.IsZero():
		text = "the journal has nothing"
	case a.question.Since.After(a.read.Begins):
		text = "the journal was read from " + a.words.stamp(a.question.Since)
	}
	if len(a.session.Workers.Failing) > 0 {
		first := slices.MinFunc(a.session.Workers.Failing, func(x, y Writer) int { return x.Complete.Compare(y.Complete) })
		text += ", and is complete until " + a.words.stamp(first.Complete) + ", since workers cannot write it"
	}
	if a.read.Counted > 0 {
		text += fmt.Sprintf(", and has only counts of %d events since then", a.read.Counted)
	}
	return text
}

// sayDigest says when a digest reported a drop to the channel. The digest lists the worker's round that counted the drop, and is about the
// same mute or none: one round counts for both. If a digest is claimed between two reports of one round, two digests list that round.
func (a *asking) sayDigest(ctx context.Context, dropped journal.Entry) []string {
	if dropped.Channel == "" {
		return nil
	}
	if !a.session.hasDigests {
		a.session.readDigests(ctx)
	}
	var reports []string
	for _, digest := range a.session.digests {
		ofMute := digest.Mute == dropped.Mute
		if dropped.Level == limits.LevelMute && dropped.Mute == "" { // by any mute
			ofMute = digest.Mute != ""
		}
		if digest.Channel == dropped.Channel && ofMute && digest.Rounds.Hold(dropped.Instance, dropped.Round) {
			reports = append(reports, fmt.Sprintf("%s (%d suppressed)", a.words.second(digest.Decided), digest.Count))
		}
	}
	if len(reports) == 0 {
		return []string{"no digest in " + dropped.Channel + " has reported it, as far as the journal knows"}
	}
	return []string{"reported in " + dropped.Channel + " by the digest of " + strings.Join(reports, ", or of ")}
}

func (s *session) readDigests(ctx context.Context) {
	s.hasDigests = true
	_, err := s.Entries(ctx, []journal.Query{{Result: journal.Digest}}, func(_ int, e journal.Entry) { s.digests = append(s.digests, e) })
	if err != nil {
		s.unknown("the digests cannot be looked up", err)
	}
	slices.SortStableFunc(s.digests, func(x, y journal.Entry) int { return x.Decided.Compare(y.Decided) })
}

// sayNow says what would happen to an event of a kind.
func (w words) sayNow(one kind, known store.Explanation) string {
	if mute := known.Muted; mute != nil {
		text := fmt.Sprintf("an event of %s would be dropped now: %s is muted until %s", one, mute.Path, w.second(mute.Until))
		if mute.Spare != "" {
			text += ", except " + mute.Spare + " events"
		}
		if mute.By != "" {
			text += " by " + mute.By
		}
		return text + ": " + mute.Reason
	}
	denial := known.Denial
	if denial == nil {
		text := fmt.Sprintf("an event of %s would be sent now%s", one, known.Unless())
		var used []string
		for _, limit := range known.Limits {
			used = append(used, fmt.Sprintf("%s %d of %d used", limit.Name(), limit.Used, limit.Size))
		}
		if len(used) > 0 {
			text += ": " + strings.Join(used, ", ")
		}
		return text
	}
	text := fmt.Sprintf("an event of %s would be denied now by %s %s", one, denial.Level, denial.Limit)
	if denial.Size == 0 {
		return text + ", which lets nothing through"
	}
	if denial.Never {
		return text + ": guarantees reserve all of its slots"
	}
	text += fmt.Sprintf(": %d of %d used", denial.Used, denial.Size)
	if denial.Next != nil {
		text += ", the next slot opens at " + w.second(*denial.Next)
	}
	return text
}
