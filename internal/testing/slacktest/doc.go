// Package slacktest is a local HTTP server that behaves as Slack does, for tests, benchmarks and rehearsals (package slackstub).
//
// It serves the Web API methods chat.postMessage, chat.update, conversations.history, conversations.replies, auth.test,
// conversations.info, users.conversations and usergroups.list, and one incoming webhook. It checks token, scopes, channel and message
// as Slack does. It records every post in order of arrival, and marks the accepted posts. Scripted answers make it fail in each way that
// Slack and the network between can fail, also after it has stored the message. With limits it counts requests as Slack does: for each
// method, each channel and the workspace, in sliding windows.
//
// Like Slack, an answer names the channel by its ID, and an update needs that ID and the ts of an accepted post. A reply
// to an absent message is posted to the channel as if it were no reply, without an error.
//
// A Server is safe for concurrent use. In tests it listens on loopback alone. Close ends every request under way, held ones included, and
// returns when nothing of the server is left running.
package slacktest
