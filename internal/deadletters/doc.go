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
// # A replay that is interrupted
//
// A replay has two steps: publish the event, remove the letter. In this order nothing is lost. A replay that is interrupted between the
// steps leaves a letter whose event is on its way, and the next replay publishes the event again. Two things prevent a second post:
//
//   - The server. The name of the message (Nats-Msg-Id) contains the letter's number and time, so the room stores the message once
//     within its duplicate window. A restarted server knows the names of the messages that it still holds.
//   - The identity. Both messages hold the same event: category, ID, part and origin. A worker looks up the event in the delivery record.
//     While one message is being delivered, the worker returns the other message. While one message waits in the room, the other
//     message goes on with its slots. A message that comes after the delivery is a duplicate. A rejected event leaves no record, and
//     is evaluated again.
//
// The identity alone is enough, except in three cases. In each of them, the replay was killed between its two steps, its event was
// delivered, and the replay runs again after the server has forgotten the name. Then the event is posted a second time:
//
//   - The delivery record has forgotten the event: it is older than the stream's maximum age or NOTIFIER_EVENT_MAX_AGE,
//     whichever is longer, plus an hour.
//   - Redis has lost its data since the delivery.
//   - Redis is unavailable, and two workers decide about one message each, by a failure policy other than hold.
//
// An event that a limit has dropped is not delivered: the next replay may send it.
package deadletters
