// Package client makes the HTTP requests of sinks.
//
// A [Client] makes one HTTP request for each [Call]: it follows no redirect and repeats nothing. It bounds the time of the call
// and the size of the answer, redacts secrets in texts and errors, and reports each counted request to its owner.
//
// The sink makes the request itself with Client.HTTP, mostly through the library of its service, and judges the answer.
// [Reply.Judge] judges an answer by its HTTP status alone.
//
// A request counts as certainly not sent as long as none of its body was handed to a connection. From then on its fate is unknown
// until an answer comes.
//
// Everything exported is safe for concurrent use. No error holds a secret of the Redactor: texts are redacted before they are
// wrapped.
package client
