// Package slacktest is a local HTTP server that behaves as Slack does, for tests and benchmarks
// of what posts to Slack.
//
// It serves the Web API methods chat.postMessage, auth.test, conversations.info and
// users.conversations, and one incoming webhook. It checks token, channel and message as Slack
// does, records every post in order of arrival, and counts those that it took apart from
// those that it only received. Scripted answers make it fail in each way that Slack and the
// network between can fail.
//
// A Server is safe for concurrent use. It listens on loopback alone. Close ends every request
// under way, held ones included, and returns when nothing of the server is left running.
package slacktest
