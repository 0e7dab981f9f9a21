// Package room defines the layout of the room: the stream of events that have left the producers' stream and have no outcome yet.
//
// It owns the subjects and headers of the room, and no behaviour: workers store and pull its messages (package consume), operators replay
// dead letters into it (package deadletters). Producers have no right to publish there, and messages that they make the server publish
// there have no mark (package trusted), so an [Entry] is trusted.
//
// <room>.<reason>.<first level>.<key> a message schedule; the server stores its message again when it is due, on <room>.due.<reason>.<first
// level>.<key> <room>.channel.<channel>.<first level> a queue for each channel <room>.part.<first level> the alerts of bodies that held
// several <room>.replay.<first level> dead letters that an operator replays
//
// An update of a posted message is on the subject of that message, on <room>.due.update.<first level>.<key> or as a schedule. A newer state of
// the message takes its place.
//
// The first level is that of the event's category. All functions may be called at once.
package room
