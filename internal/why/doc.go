// Package why answers why an event was not sent, or what else became of it.
//
// [Ask] puts together what the journal, the delivery record, the room, the dead letters and the limits in force know, and says it in
// sentences. It never guesses: where only a count is known, it says that, and where a source cannot be asked, it says that too. What
// it asks takes nothing and changes nothing.
//
// The package holds no state. Ask may be called any number of times at once; each call asks every source it needs, one after the
// other, and ends with its context.
package why
