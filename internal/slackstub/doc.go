// Package slackstub is a rehearsal of Slack: the server of package slacktest on an address of the caller's choice, with a page that
// shows the messages it took and the posts it refused.
//
// The page is read-only. It keeps the newest messages only, so a server that runs for long does not grow. What producers wrote is text: the
// page escapes all of it and has no script. On a loopback address the page answers only requests that name this host.
package slackstub
