// Package ingest accepts events over HTTP and publishes them to JetStream, for producers without NATS.
//
// It owns the HTTP interface in openapi.json: the accepted requests, their answers, the tokens and their categories, and the protection of
// the server from its clients. A request becomes one NATS message, a batch of CloudEvents one message for each event. The message has the
// unchanged body, the subject of the category in the path, and only the headers that this package chooses.
//
// A [Server] may serve many requests at once. Its order of calls is Listen, then Serve and Watch in separate goroutines, then Shutdown.
// Shutdown may also come before Serve or instead of it.
//
// An event answered with 202 is stored: JetStream has acknowledged it. After any other answer the event may have been stored, and the
// client may send it again. A repeated event with an ID is stored once within the stream's duplicate window. While JetStream is unavailable
// or full, requests get 503 and this process stores nothing.
//
// A file of tokens or certificates that becomes invalid does not stop the server: the last valid version stays in force, and the error is
// logged once.
package ingest
