// Package why explains why an event was not sent, or how else it ended.
//
// [Ask] combines the journal, the delivery record, the room, the dead letters and the limits in force, and answers in sentences. It never
// guesses: an answer states where only a count exists, and which source did not answer. Ask only reads.
//
// The package holds no state. Ask may be called concurrently. Each call reads the sources that it needs, one after another, until its
// context ends.
package why
