// Package event turns what JetStream stored into an Event, or says in words why it cannot.
//
// It owns three things. A category path and the patterns over such paths: ValidatePath,
// Prefixes, Pattern, and Table, which finds the most specific pattern for a path; Scope and
// Scopes, where a pattern may also mean all that lies below it. The Event itself. And the
// Decoder, which reads a JSON object, a group of alerts, a CloudEvent 1.0 or plain text into an
// Event; each body is taken as exactly one of them, by the rules at Decoder.Decode. A group of
// several alerts is split into messages of one event each by Decoder.Parts.
//
// A flood is too fast to be decoded: QuickTitle, MayResolve and MayFire tell from a body what a drop needs
// to know of it.
//
// Everything here is a pure function of its arguments: no clock, no input or output, no state.
// All values may be used by any number of goroutines at once, and the same message decodes to
// the same Event, or the same Fault, at each redelivery and on each instance.
//
// A message that cannot be decoded yields a *Fault, whose Reason is one of a closed set and
// whose Detail is safe to show and to store. A fault is final: the same message never decodes
// later. No input makes this package panic, and the work is linear in the size of the message.
package event
