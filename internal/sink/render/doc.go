// Package render makes Slack's messages of events and digests.
//
// A [Template] prints the JSON of a message, which is read strictly and checked against Slack's limits. The result is a [Message] in
// the types of slack-go. It can always be sent: if a template fails, the default template replaces it.
//
// Everything that a template prints is escaped for Slack and for JSON. The texts of an event cannot mention anybody, link
// anywhere or break the message. Mentions come from the settings of the operator.
//
// Rendering is pure: it makes no request and reads no clock except to bound its time. Everything exported is safe for concurrent use.
package render
