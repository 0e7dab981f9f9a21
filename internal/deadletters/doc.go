// Package deadletters looks after what workers could not deliver: it lists dead letters, and sends them on again or
// drops them.
//
// It owns the reading of the dead-letter stream, whose letters are written by package consume, and the replay. Reading
// takes nothing from the stream. A replay puts a letter's event into the room, where producers cannot publish, with all that
// tells the event from others; so it goes through the limits like any event, and a worker that knows the event as delivered
// takes it as a duplicate.
//
// # A replay that is interrupted
//
// A replay is two steps: publish the event, remove the letter. In this order nothing is lost. A replay that ends in between
// leaves a letter whose event is on its way, and the next replay publishes the event again. Two things keep that event from
// being posted twice:
//
//   - The server. The name of the message (Nats-Msg-Id) is made of the letter's place and time, so the room stores it once
//     within its duplicate window. A server that restarts knows the names of the messages that it still holds.
//   - The identity. Both messages hold the same event: category, ID, part and origin. A worker asks the delivery record for it.
//     While one message is being delivered the other one is given back; when one waits in the room the other one goes on with its
//     slots; what comes after the delivery is a duplicate. A rejected event leaves no record, and is evaluated anew.
//
// The identity alone is enough, except in three cases. In each of them the replay was killed between its two steps, its event was
// delivered, and the replay is run again when the server has forgotten the name. Then the event is posted a second time:
//
//   - The delivery record has forgotten the event: it is older than the stream's maximal age or NOTIFIER_EVENT_MAX_AGE,
//     whichever is longer, and an hour.
//   - Redis has lost its data since the delivery.
//   - Redis is unavailable, and two workers decide about one message each, by a failure policy other than hold.
//
// An event that a limit has dropped is no delivery: the next replay may send it.
package deadletters
