// Package event decodes stored messages into events or explains why it cannot.
//
// It owns category paths and the patterns over them (ValidatePath, Prefixes, Pattern), Table, which finds the most specific pattern for a
// path, Scope and Scopes, whose patterns may also cover everything below a path, the Event, and the Decoder. The Decoder reads a JSON
// object, a group of alerts, a CloudEvent 1.0 or plain text into an Event; the rules at Decoder.Decode select exactly one of these forms.
// Decoder.Parts splits a group of several alerts into one message for each event.
//
// Most events of a flood are dropped without decoding: QuickTitle and HintsOf find the facts that a drop needs by a search of the body.
//
// Everything here is a pure function of its arguments: no clock, no input or output, no state. Any number of goroutines may use all values
// at once, and a message decodes to the same Event or Fault at each redelivery and on each instance.
//
// If a message cannot be decoded, the result is a *Fault with a Reason of a closed set and a Detail that is safe to show and to store. A
// fault is final: the message never decodes later. No input makes this package panic, and the work is linear in the size of the message.
package event
