// Package deadletters owns the events that workers could not deliver: it stores them as dead letters, lists them, replays them and removes
// them.
//
// # Writing
//
// A [Writer] stores a letter under the reason and the first level of its category. The stream bounds the letters of each subject, and their
// bytes. If a bound is reached, the server refuses the letter, and the writer removes older letters. If the subject is full, it removes the
// subject's oldest letters; if the stream is full, the oldest letters of the first level with the most bytes. So a producer pushes out its
// own letters. A first level within its share, the stream's bytes divided by the number of first levels, loses none. The server returns how
// many letters each removal took, so the metric is exact even with several writers. A letter's header counts the letters that were removed
// for it.
//
// # Reading
//
// Reading takes nothing from the stream. A replay puts a letter's event into the room, where producers cannot publish, together with the
// event's identity. So the event goes through the limits like any event, and a worker treats it as a duplicate if it is already delivered.
//
// A replay publishes the event, then removes the letter, so an interrupted replay loses nothing and can be repeated. The server recognises the
// name of the message, and workers recognise the identity of the event, which both messages have. docs/delivery.md lists the cases in which
// such an event is posted a second time.
package deadletters
