// Package configs holds the samples for operating the notifier, and the templates that are built in.
package configs

import _ "embed" // the templates

// SlackMessage is the template of an event's message in Slack, unless the settings name another.
//
//go:embed slack-message.tmpl
var SlackMessage string

// SlackSummary is the template of the message that reports what was suppressed.
//
//go:embed slack-summary.tmpl
var SlackSummary string
