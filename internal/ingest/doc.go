// Package ingest takes events over HTTP and publishes them to JetStream, for producers that speak no NATS.
//
// It owns the HTTP interface that openapi.json describes: which requests are taken, how they are answered, who may write where, and what
// protects the server from its clients. A request becomes one NATS message, a batch of CloudEvents one for each event. The message has the
// body as it came, the subject of the category in the path, and no headers but those that this package chooses.
//
// A [Server] may serve many requests at once. Its order of calls is Listen, then Serve and Watch in goroutines of their own, then
// Shutdown. Shutdown may also come before Serve or instead of it.
//
// What a request is answered with 202 is stored: JetStream has acknowledged it. Any other answer means that the event may be stored or
// not, and that the client may send it again. A repeated event with an ID is stored once within the stream's duplicate window. While
// JetStream is unavailable or full, requests get 503 and nothing is kept in this process.
//
// A file of tokens or certificates that becomes bad does not stop the server: the last good content stays in force, and the log says so
// once.
package ingest
