// Package slack posts messages to Slack, through a bot token or an incoming webhook.
//
// It owns the calls of Slack's API, which slack-go makes with the HTTP client of package client, and the classes of Slack's answers.
// Package render makes the messages.
//
// With a bot token a resolved event is a reply in the thread of the firing event's message. If message, thread or channel are gone, Send fails
// with an error that is Lost: the caller then sends the event without the message. With a webhook the resolved event is a message of its own. So
// is an event whose receipt is unreadable. Update changes the message of the firing event, apart from the delivery, and can be repeated.
//
// The handle of a user group is looked up when it is first needed. A message leaves out a handle that cannot be found.
//
// A post in doubt is looked up in the messages of its channel. Callers that look for posts of one channel share a reading, and workers share their
// readings through Options.Readings. After any failure there, a worker reads for itself.
//
// Everything exported is safe for concurrent use. No error holds the token, the webhook URL or its path.
package slack
