// Package page serves one page for people that shows what the whole deployment does now.
//
// The page is read-only: it answers GET and HEAD alone, and its [Source] changes nothing. Whoever reads it needs the token, if there is
// one. All that comes from events is a text of strangers: html/template escapes it, and the content security policy allows no script and
// no style but the page's own files.
//
// The source is asked once a second, and only while somebody watches. All watchers share the answer and what is rendered of it. A watcher
// that is too slow for its connection misses answers and holds up nobody. The server works without a script in the browser; a
// script keeps what it shows up to date, by server-sent events.
//
// A [Server] may serve many requests at once. It owns the goroutine that asks, which ends with the last watcher, and with Shutdown.
package page
