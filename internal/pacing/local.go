package pacing

import (
	"maps"
	"sync"
	"time"
)

// local keeps the budgets of this instance alone, by the rules of the scripts.
type local struct {
	pace   Pace
	pauses pauses

	mu       sync.Mutex
	tats     map[string]time.Time // by channel: its theoretical arrival time, the end of all reserved intervals
	askers   map[string]askers    // by channel
	line     map[string]time.Time // channels that wait for the workspace, and until when they count
	posts    slots
	updates  updating
	lookUps  slots
	limited  limited
	mentions mentions
}

// limited is the newest pause of a single channel whose post Slack limited.
type limited struct {
	channel  string
	at, ends time.Time
}

func newLocal(b Budgets) *local {
	return &local{
		pace: b.Channel, posts: slots{window: b.Workspace}, updates: updating{slots: slots{window: b.Updates}, messages: make(map[string]message)},
		lookUps: slots{window: b.LookUps},
		tats:    make(map[string]time.Time), askers: make(map[string]askers), line: make(map[string]time.Time),
		pauses: pauses{until: make(map[string]time.Time)}, mentions: mentions{byPath: make(map[string]mentioned)},
	}
}

// channelSlot returns the slot of a post that is behind other posts of its channel.
func (l *local) channelSlot(now, paused, tat time.Time, behind int) time.Time {
	earliest := later(now, paused)
	return later(earliest, later(tat, earliest).Add(time.Duration(behind)*l.pace.Interval-l.pace.ahead()))
}

// post does what pace.lua does, for a channel that is paused for a time.
func (l *local) post(now time.Time, name string, a Ask, known time.Duration) Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	paused := now.Add(max(known, l.pauses.left(now, a.Channel, workspace)))
	tat := l.tats[a.Channel]
	if paused.After(now) {
		tat = later(tat, paused.Add(l.pace.ahead()))
	}
	all := l.askers[a.Channel].counting(now)
	all.byName[name] = asker{order: a.order(), until: now}
	if all.place.IsZero() {
		all.place = now
	}
	before := all.before(name)
	first, own := l.channelSlot(now, paused, tat, 0), l.channelSlot(now, paused, tat, before)
	turn := l.posts.next(now, l.position(now, a.Channel, all.place, before))

	slot, reserved := later(own, turn), !own.After(now.Add(lead)) && !turn.After(now.Add(horizon))
	if reserved {
		slot = l.posts.unused(later(first, l.posts.next(now, 0)))
	}
	expected := slot.Sub(now)
	if expected > a.MaxWait {
		return Reservation{Wait: expected, Expected: expected}
	}
	if reserved {
		l.setTAT(now, a.Channel, later(tat, slot).Add(l.pace.Interval))
		l.posts.add(now, slot)
		delete(all.byName, name)
		l.wait(now, a.Channel, all, false)
		return Reservation{OK: true, Wait: expected, Expected: expected}
	}
	isDue, wait := !first.After(now.Add(lead)), askAgain(own.Sub(now), turn.Sub(now))
	if before == 0 && !isDue {
		wait = own.Sub(now) - lead/2
	}
	all.byName[name] = asker{order: a.order(), until: now.Add(wait + grace)}
	l.wait(now, a.Channel, all, isDue && l.posts.window.Count > 0)
	return Reservation{Wait: wait, Expected: expected}
}

// askAgain returns when an asker behind other askers asks again.
func askAgain(own, turn time.Duration) time.Duration {
	rest := turn - horizon
	if own > turn {
		rest = own - lead
	}
	return max(shortest, ((rest + time.Microsecond) / 2).Truncate(time.Microsecond))
}

// position returns how many posts of the workspace go before the post of an asker of a channel with a place.
func (l *local) position(now time.Time, channel string, place time.Time, before int) int {
	if l.posts.window.Count == 0 {
		return 0
	}
	length, ahead := 1, 0
	for other, until := range l.line {
		if other == channel || until.Before(now) {
			continue
		}
		length++
		if l.askers[other].place.Before(place) {
			ahead++
		}
	}
	return ahead + before*length
}

// wait records who waits for a channel, and whether the channel is in the line of the workspace.
func (l *local) wait(now time.Time, channel string, all askers, inLine bool) {
	if len(l.askers) >= maxPauses {
		maps.DeleteFunc(l.askers, func(_ string, a askers) bool { return len(a.counting(now).byName) == 0 })
		maps.DeleteFunc(l.line, func(_ string, until time.Time) bool { return until.Before(now) })
	}
	if inLine {
		l.line[channel] = all.untilFrontAsks()
	} else {
		all.place = time.Time{}
		delete(l.line, channel)
	}
	l.askers[channel] = all
	if len(all.byName) == 0 {
		delete(l.askers, channel)
	}
}

// lookUp does what look_up.lua does.
func (l *local) lookUp(now time.Time, known, maxWait time.Duration) Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	slot := l.lookUps.unused(later(now.Add(max(known, l.pauses.left(now, lookUps))), l.lookUps.next(now, 0)))
	wait := slot.Sub(now)
	if wait <= maxWait {
		l.lookUps.add(now, slot)
	}
	return Reservation{OK: wait <= maxWait, Wait: wait, Expected: wait}
}

// update does what update.lua does, while updates are paused for a time.
func (l *local) update(now time.Time, u Update, known time.Duration) Reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.updates.ask(now, u, max(known, l.pauses.left(now, updates)))
}

// updated does what updated.lua does.
func (l *local) updated(now time.Time, name string, order int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.updates.end(now, name, order)
}

// pause does what pause.lua does.
func (l *local) pause(now time.Time, name string, d time.Duration, why cause) map[string]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pauses.learn(now, map[string]time.Duration{name: d})
	if isChannel := name != updates && name != lookUps && name != workspace; isChannel && d > 0 {
		if why == byLimit {
			l.limit(now, name, d)
		}
		if l.pace.ahead() > 0 {
			l.setTAT(now, name, later(l.tats[name], now.Add(l.pauses.left(now, name)+l.pace.ahead())))
		}
	}
	return pausesOf(name, l.pauses.left(now, name), l.pauses.left(now, workspace))
}

// limit records that Slack limited a post to a channel, and pauses the workspace if another channel was limited just before.
func (l *local) limit(now time.Time, channel string, d time.Duration) {
	before := l.limited
	l.limited = limited{channel: channel, at: now, ends: now.Add(d)}
	if before.channel != channel && now.Sub(before.at) <= limitedTogether {
		l.pauses.learn(now, map[string]time.Duration{workspace: min(before.ends.Sub(now), d)})
	}
}

// use does what budgets.lua does.
func (l *local) use(now time.Time, channels []string) (use Use) {
	l.mu.Lock()
	defer l.mu.Unlock()
	use.Workspace.Used, _ = l.posts.use(now)
	use.Updates.Used, use.Updates.Waiting = l.updates.slots.use(now)
	use.LookUps.Used, use.LookUps.Waiting = l.lookUps.use(now)
	for _, until := range l.line {
		if !until.Before(now) {
			use.Workspace.Waiting++
		}
	}
	use.Workspace.Paused = l.pauses.left(now, workspace)
	use.Updates.Paused, use.LookUps.Paused = l.pauses.left(now, updates), l.pauses.left(now, lookUps)
	for _, channel := range l.pace.counted(channels) {
		if wait := l.tats[channel].Add(-l.pace.ahead()).Sub(now); wait <= l.pace.Interval+horizon {
			use.addChannel(ChannelUse{Channel: channel, Wait: wait, Askers: len(l.askers[channel].counting(now).byName)})
		}
	}
	return use
}

// learnPost notes a post that Redis reserved. If Redis becomes unavailable, this instance continues after it, without a burst.
func (l *local) learnPost(now time.Time, channel string, slot time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setTAT(now, channel, later(l.tats[channel], slot.Add(l.pace.Interval+l.pace.ahead()))) // replies may come in another order than the reservations
	l.posts.add(now, l.posts.unused(slot))
}

// learn notes an update or a look-up that Redis reserved.
func (l *local) learn(of *slots, now, slot time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.add(now, of.unused(slot))
}

func (l *local) setTAT(now time.Time, channel string, tat time.Time) {
	if l.pace.Interval == 0 {
		return
	}
	makeRoom(l.tats, func(until time.Time) bool { return !until.After(now) })
	l.tats[channel] = tat
}

// mentions decides for this instance alone which events may mention people.
type mentions struct {
	mu     sync.Mutex
	byPath map[string]mentioned
}

type mentioned struct {
	id    string
	until time.Time
}

func (m *mentions) take(now time.Time, path, id string, d time.Duration) mention {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := m.byPath[path]; now.Before(last.until) {
		if last.id == id {
			return hasMention
		}
		return noMention
	}
	makeRoom(m.byPath, func(other mentioned) bool { return !other.until.After(now) })
	m.byPath[path] = mentioned{id: id, until: now.Add(d)}
	return takesMention
}

func (m *mentions) giveBack(path, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byPath[path].id == id {
		delete(m.byPath, path)
	}
}

// maxPauses bounds the channels and paths that an instance remembers. A workspace has fewer busy channels.
const maxPauses = 10_000

// makeRoom removes what is over from a map that is full, and everything if nothing is over.
func makeRoom[V any](of map[string]V, isOver func(V) bool) {
	if len(of) >= maxPauses {
		maps.DeleteFunc(of, func(_ string, value V) bool { return isOver(value) })
	}
	if len(of) >= maxPauses {
		clear(of)
	}
}

// pauses remembers what is paused: channels, the workspace, the updates, the look-ups.
type pauses struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (p *pauses) learn(now time.Time, durations map[string]time.Duration) {
	if len(durations) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, d := range durations {
		makeRoom(p.until, func(until time.Time) bool { return !until.After(now) })
		if until := now.Add(d); until.After(p.until[name]) {
			p.until[name] = until
		}
	}
}

// left returns the longest remaining pause of the names.
func (p *pauses) left(now time.Time, names ...string) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		left := p.until[name].Sub(now)
		if left <= 0 {
			delete(p.until, name)
		}
		longest = max(longest, left)
	}
	return longest
}
