// Package stream finds the streams and consumers of a deployment in JetStream, and creates, checks and counts what they hold.
//
// It owns the connection to NATS, the names of streams, consumers and subjects, their configuration, and the estimate of the server's
// clock. It takes and acknowledges no message: package consume does. It imports no package that knows an event.
//
// A [Connection] reconnects without end. A [Client] searches for the streams and consumers until they exist, and creates them if it may. It
// never changes an existing stream or consumer; only [Provisioning] does. A stream in which publishers could command the server is
// [ErrUnfit], and so is a server that is too old.
//
// All methods may be called concurrently, except those of [Provisioning].
package stream
