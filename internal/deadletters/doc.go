// Package deadletters looks after what workers could not deliver: it lists dead letters, and sends them on again or
// drops them.
//
// It owns the reading of the dead-letter stream, whose letters are written by package consume, and the replay. Reading
// takes nothing from the stream. A replay puts a letter's event into the room, where producers cannot publish, with all that
// tells the event from others; so it goes through the limits like any event, and a worker that knows the event as delivered
// takes it as a duplicate.
//
// # Nothing is replayed twice
//
// A replay is three steps, between any two of which it may end without a word:
//
//	mark ──► publish ──► delete the letter, then the mark
//
// The mark is a message in the dead-letter stream, on a subject of the letter's own, and the server takes only the first
// one. It keeps what will tell later whether the event was stored: the last sequence of the room before the step, and which
// server that was. The event is published under a name made of the letter's place and time.
//
// Who finds a mark finds a replay that was interrupted, or runs at this moment. It publishes only if that cannot store
// the event a second time:
//
//   - the name is still within the room's duplicate window and the server is the same, so it knows the name again (a
//     server that was restarted knows only the names of messages that it still holds, and a work queue holds no settled
//     ones); or
//   - nothing has left the room since the mark, and the event is not in it.
//
// It only deletes the letter if the event is in the room, or if it has come back as another dead letter. What remains is
// a replay that was killed within the few milliseconds of the second step, and is run again after the window or a restart,
// and after workers have taken what was stored since: whether its event was among that cannot be told. Such a letter is
// [InDoubt]. It stays where it is, until someone forces its replay or drops it.
//
// That a program is suspended for longer than the duplicate window in the middle of a publish, while another one replays
// the same letter, is not guarded against.
package deadletters
