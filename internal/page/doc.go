// Package page serves a live web page about the whole deployment.
//
// The page is read-only: it answers only GET and HEAD, and its [Source] only reads. If a token is set, readers need it. Texts from events
// are untrusted: html/template escapes them, and the content security policy allows only the page's own scripts and styles.
//
// While there are watchers, the page requests the status from the source once a second. All watchers share the answer and its rendering. A
// slow watcher misses answers and does not delay other watchers. The page works without JavaScript; its script updates it by server-sent
// events.
//
// A [Server] serves requests concurrently. It owns the goroutines that read the source. They end with the last watcher and with Shutdown.
package page
