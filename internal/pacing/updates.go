package pacing

import "time"

// How late a reserved update may begin, and how long a message is remembered after its newest request, as in update.lua and lib/updates.lua.
const (
	lateUpdate  = time.Second
	messageKept = time.Hour
)

// updating reserves updates, as update.lua does.
type updating struct {
	slots    slots
	messages map[string]message
}

// message is the state of the updates of one message, as in lib/updates.lua.
type message struct {
	newest  int64     // order of the newest state that has asked
	slot    time.Time // of the reserved update; zero: there is none
	running int64     // order of the state of the newest update
	began   time.Time // when that update began
	done    int64     // order of the state that the message shows

	forgotten time.Time // when the message may be forgotten
}

// ask reserves the update of a message, and begins it when it is due.
func (o *updating) ask(now time.Time, u Update, paused time.Duration) Reservation {
	m := o.of(now, u.Message)
	if u.Order < m.newest || u.Order <= m.done {
		return Reservation{Obsolete: true}
	}
	if ends := m.began.Add(u.Lasts); m.running > m.done && m.running != u.Order && ends.After(now) {
		wait := min(ends.Sub(now), time.Second)
		return Reservation{Wait: wait, Expected: wait}
	}
	slot, isReserved := m.slot, true
	if slot.Before(now.Add(-lateUpdate)) || paused > 0 && slot.Before(now.Add(paused)) {
		slot, isReserved = o.slots.unused(later(now.Add(paused), o.slots.next(now, 0))), false
	}
	wait := max(slot.Sub(now), 0)
	begins := wait <= u.Within
	if wait > u.MaxWait {
		return Reservation{Wait: wait, Expected: wait}
	}
	m.newest, m.slot = u.Order, slot
	if begins {
		m.slot, m.running, m.began = time.Time{}, u.Order, now.Add(wait)
	}
	o.keep(u.Message, m, now.Add(wait))
	if !isReserved {
		o.slots.add(now, slot)
	}
	return Reservation{OK: begins, Wait: wait, Expected: wait}
}

func (o *updating) end(now time.Time, name string, order int64) {
	m := o.of(now, name)
	m.done = max(m.done, order)
	m.newest = max(m.newest, m.done)
	o.keep(name, m, now)
}

func (o *updating) of(now time.Time, name string) message {
	if m := o.messages[name]; m.forgotten.After(now) {
		return m
	}
	return message{}
}

// keep remembers a message with an update that is due at a time.
func (o *updating) keep(name string, m message, due time.Time) {
	makeRoom(o.messages, func(other message) bool { return !other.forgotten.After(due) })
	m.forgotten = due.Add(messageKept)
	o.messages[name] = m
}
